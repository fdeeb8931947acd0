// Loads the network of this folder without Python and computes its example inputs.  README.md says how to build it.
#include <dlfcn.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  if (!dlopen((folder + "/libtpgen.so").c_str(), RTLD_NOW | RTLD_GLOBAL)) {  // before the network, which calls it
    std::cerr << dlerror() << "\n";
    return 1;
  }
  torch::inductor::AOTIModelPackageLoader network(folder + "/model.pt2");
  std::ifstream file(folder + "/inputs.pt", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const at::IValue read = torch::jit::pickle_load(bytes);
  std::vector<at::Tensor> inputs;
  for (const at::IValue& input : read.toListRef()) inputs.push_back(input.toTensor());
  std::cout << std::setprecision(17);
  for (const at::Tensor& result : network.run(inputs)) {
    const at::Tensor flat = result.to(at::kDouble).contiguous();
    for (int64_t n = 0; n < flat.numel(); ++n) std::cout << flat.data_ptr<double>()[n] << " ";
    std::cout << "\n";
  }
}
