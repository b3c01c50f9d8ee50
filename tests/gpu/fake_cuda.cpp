// What a CPU build of torch lacks to carry tensors on "cuda" through autograd: a device guard, and a driver that says
// that one GPU exists. Nothing is computed: the tensors are FakeTensors, which have shapes and devices but no values.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

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
};

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks);
}
