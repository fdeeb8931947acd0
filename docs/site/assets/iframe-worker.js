// The search of a page that was opened from disk: a browser starts no worker there, so a hidden frame runs its script.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inside = frame.contentWindow, page = inside.document;
      inside.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      this.ready = new Promise((resolve, reject) => {
        const script = page.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        page.head.append(script);
      });
      this.send = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      this.ready.then(() => this.send(data));
    }
    terminate() {}
  };
}
