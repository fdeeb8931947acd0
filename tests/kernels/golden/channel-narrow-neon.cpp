--- channel-narrow-bfloat16
+++ this
@@ -1 +1 @@
-// channel schedule: 8 lanes of bfloat16, 2 tables
+// channel schedule: 4 lanes of float32, 2 tables
@@ -3 +3 @@
-//   path 1: 20x0e x 1x1o -> 20x1o (uvu); x1[20] staged, w[20] staged, out[20] staged; 3 non-zeros
+//   path 1: 20x0e x 1x1o -> 20x1o (uvu); x1[20], w[20], out[20]; 3 non-zeros
@@ -5 +5 @@
-// prelude f3006f326a62
+// prelude 924619fe58a7
@@ -35 +34,0 @@
-  stage<1, 20, 1>(x1 + 0, s_x1 + 24);
@@ -37 +35,0 @@
-  stage<1, 20, 1>(w + 6, s_w + 8);
@@ -52,3 +50,3 @@
-    for (int c = 0; c < 24; c += W) {
-      vec x[1]; x[0] = load(s_x1 + 24 + c);
-      vec u[1]; u[0] = load(s_w + 8 + v * 24 + c);
+    for (int c = 0; c < 20; c += W) {
+      vec x[1]; x[0] = fetch(x1 + 0 + c);
+      vec u[1]; u[0] = fetch(w + 6 + c);
@@ -59,3 +57,2 @@
-      store(a_out + 8 + c, sum_out_0);
-      store(a_out + 32 + c, sum_out_1);
-      store(a_out + 56 + c, sum_out_2);
+      const vec o_out[3] = {sum_out_0, sum_out_1, sum_out_2};
+      Tile<3>::put_items(d_out + 6 + c * 3, o_out);
@@ -65 +61,0 @@
-  unstage<1, 20, 3>(a_out + 8, d_out + 6);
@@ -78 +74 @@
-    const Room<num> scratch_room(232); num* const scratch = scratch_room.at;
+    const Room<num> scratch_room(176); num* const scratch = scratch_room.at;
@@ -80,4 +76,4 @@
-    num* const s_w = scratch + 48;
-    num* const a_out = scratch + 80;
-    num* const t_x2 = scratch + 160;
-    num* const T = scratch + 184;
+    num* const s_w = scratch + 44;
+    num* const a_out = scratch + 72;
+    num* const t_x2 = scratch + 140;
+    num* const T = scratch + 152;
