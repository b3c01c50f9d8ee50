// A GPU that a CPU build of torch can compute on: a device "cuda:0" with memory of its own, which the host may not touch
// (it would be a segmentation fault). Every operation copies its tensors to the host, computes there, and copies the
// results back.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/div.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>

namespace {

constexpr auto kGpu = c10::DeviceType::CUDA;

struct OneGpu final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kGpu; }
  c10::Device exchangeDevice(c10::Device) const override { return {kGpu, 0}; }
  c10::Device getDevice() const override { return {kGpu, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

C10_REGISTER_GUARD_IMPL(CUDA, OneGpu);

struct CUDAHooks final : at::CUDAHooksInterface {  // torch looks for a class of this name
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  std::string showConfig() const override { return ""; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

// The GPU's memory: each block has pages of its own, which are closed except while a copy reads or writes them.
class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    size_t whole = (bytes / 4096 + 1) * 4096;
    void* block = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(block != MAP_FAILED, "no memory for ", whole, " bytes");
    sizes[block] = whole;
    return {block, block, &release, c10::Device(kGpu, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { TORCH_CHECK(false, "not used"); }

  static void release(void* block) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    munmap(block, sizes.at(block));
    sizes.erase(block);
  }
  static void protect(const at::Tensor& tensor, int how) {
    void* block = const_cast<void*>(tensor.storage().data());
    TORCH_CHECK(mprotect(block, sizes.at(block), how) == 0, "mprotect failed");
  }
  static inline std::recursive_mutex mutex;

 private:
  static inline std::map<void*, size_t> sizes;
};

Memory memory;

// A view of a tensor for the host, which may use it until the object ends. It owns no tensor of Python's: to release one,
// it would wait for the interpreter with the lock, for which a thread in the interpreter may wait.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) : lock_(Memory::mutex), tensor_(tensor) {
    if (tensor.is_cuda()) Memory::protect(tensor, PROT_READ | PROT_WRITE);
    char* start = static_cast<char*>(const_cast<void*>(tensor.storage().data()));
    void* first = tensor.is_cuda() ? start + tensor.storage_offset() * tensor.element_size() : tensor.data_ptr();
    on_host = at::from_blob(first, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  }
  ~Opened() {
    if (tensor_.is_cuda()) Memory::protect(tensor_, PROT_NONE);
  }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  const at::Tensor& tensor_;

 public:
  at::Tensor on_host;
};

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool) {
  Opened to(self), from(source);
  to.on_host.copy_(from.on_host);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& to) {
  to.resize_(source.sizes());
  return to.copy_(source);
}

at::Tensor empty(
    c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      sizes, strides, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(type));
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  if (self.sizes() == sizes) return self;
  auto* tensor = self.unsafeGetTensorImpl();
  size_t bytes = c10::multiply_integers(sizes) * self.element_size();
  if (bytes > self.storage().nbytes()) {
    tensor->set_storage_keep_dtype(
        c10::Storage(c10::Storage::use_byte_size_t(), bytes, memory.allocate(bytes), &memory, true));
  }
  tensor->set_sizes_contiguous(sizes);
  return self;
}

// Its schema does not say that it changes the running averages, so they would not be copied back.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double epsilon) {
  auto host = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional<at::Tensor>(tensor->cpu()) : std::nullopt;
  };
  auto host_mean = host(mean), host_variance = host(variance);
  auto [out, batch_mean, batch_scale] = at::native_batch_norm(
      input.cpu(), host(weight), host(bias), host_mean, host_variance, training, momentum, epsilon);
  if (host_mean) mean->copy_(*host_mean);
  if (host_variance) variance->copy_(*host_variance);
  return {out.to(input.device()), batch_mean.to(input.device()), batch_scale.to(input.device())};
}

// CUDA's refusals, and its division by a number of the host: a product by the reciprocal. Only while `as_cuda` is set.
std::atomic<bool> as_cuda{false};

at::Tensor divided(const at::Tensor& self, const at::Tensor& other, at::Tensor to) {
  auto a = self.cpu();
  bool is_number = as_cuda && other.is_cpu() && other.dim() == 0 && self.is_cuda() && a.is_floating_point();
  auto result = is_number ? at::mul(a, at::reciprocal(other.to(a.scalar_type()))) : at::div(a, other.cpu());
  if (!to.defined()) return result.to(c10::Device(kGpu, 0));
  to.resize_(result.sizes());
  return to.copy_(result);
}
at::Tensor div(const at::Tensor& self, const at::Tensor& other) { return divided(self, other, {}); }
at::Tensor& div_in_place(at::Tensor& self, const at::Tensor& other) {
  divided(self, other, self);
  return self;
}
at::Tensor& div_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  divided(self, other, out);
  return out;
}

at::Tensor int_mm(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.is_cuda() && b.is_cuda(), "_int_mm of tensors of the host");
  TORCH_CHECK(a.size(0) > 16, "self.size(0) needs to be greater than 16, but got ", a.size(0));
  TORCH_CHECK(a.size(1) > 0 && a.size(1) % 8 == 0, "self.size(1) needs to be a multiple of 8, but got ", a.size(1));
  TORCH_CHECK(b.size(1) > 0 && b.size(1) % 8 == 0, "mat2.size(1) needs to be a multiple of 8, but got ", b.size(1));
  return at::mm(a.cpu().to(at::kDouble), b.cpu().to(at::kDouble)).to(at::kInt).to(a.device());
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", copy);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("native_batch_norm", batch_norm);
  m.impl("div.Tensor", div);
  m.impl("div_.Tensor", div_in_place);
  m.impl("div.out", div_out);
  m.impl("_int_mm", int_mm);
  // For these, torch would choose another algorithm than on the CPU.
  for (auto name : {"convolution", "convolution_backward", "silu_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
  }
}

}  // namespace

extern "C" void set_as_cuda(bool value) { as_cuda = value; }

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks);
}
