// Loads a TorchScript network without Python, and prints its energy, and forces by libtorch's autograd:
//
//     torchscript network.pt inputs.pt                         a portable network
//     torchscript network.pt inputs.pt potential/libtpgen.so   one that calls kernels: its energy alone
//
// docs/deploy.md says how to write the files, and how to build this.
#include <dlfcn.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/script.h>

void write(const at::Tensor& result) {
  const at::Tensor flat = result.detach().to(at::kDouble).contiguous();
  for (int64_t n = 0; n < flat.numel(); ++n) std::cout << flat.data_ptr<double>()[n] << " ";
  std::cout << "\n";
}

int main(int argc, char** argv) {
  if (argc < 3 || (argc > 3 && !dlopen(argv[3], RTLD_NOW | RTLD_GLOBAL))) {
    std::cerr << (argc < 3 ? "give a network and its inputs" : dlerror()) << "\n";
    return 1;
  }
  torch::jit::Module network = torch::jit::load(argv[1]);
  std::ifstream file(argv[2], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<at::IValue> inputs = torch::jit::pickle_load(bytes).toListRef().vec();
  at::Tensor positions = inputs[0].toTensor();
  const c10::AutoGradMode recorded(argc == 3);  // kernels compute values alone, and refuse where autograd records
  positions.requires_grad_(argc == 3);
  const at::Tensor energy = network.forward(inputs).toTensor();
  std::cout << std::setprecision(17);
  write(energy);
  if (argc == 3) write(-torch::autograd::grad({energy}, {positions})[0]);
}
