// Parameter updates on CUDA: one pass over parameter, gradient and state, four neighbours a thread, random words a Philox block
// at a time. Many parameters a launch: blocks are dealt out by their sizes, and find their parameter in a table that comes with
// the launch. The same bits as the CPU's.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/random.cuh>
#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/update/update_step.cuh>

#include <algorithm>

namespace refrain {

namespace update_kernels {

using cuda::RandomStream;

constexpr int kThreads = 256, kEach = 4;
constexpr std::int64_t kMostBlocks = 1024;  // a block goes on to pieces farther on: counters get one addition a block

// A tensor of S or of T that is computed with as T.
struct UpdateOperand {
  void* address;
  bool is_wide;
};

// One parameter.
template <class Step>
struct UpdateArguments {
  std::int64_t numel;
  UpdateOperand grad, parameter, source;  // source: the master copy, or the parameter
  UpdateOperand states[Step::kStates];
  unsigned long long* num_lost;
  unsigned long long* num_non_finite;
  const double* guard;
  std::uint64_t first_element;
  RandomStream parameter_words, state_words;
  Step step;
  bool draws_parameter, draws_state, has_master, has_states, is_packed;
};

// As many as fit into the 4 KiB that every driver passes to a kernel. Blocks first_blocks[i] … first_blocks[i + 1] - 1 are for
// parameter i.
template <class Step>
struct UpdateTable {
  static constexpr int kMost = (4096 - 16) / int(sizeof(UpdateArguments<Step>) + sizeof(unsigned));
  UpdateArguments<Step> parameters[kMost];
  unsigned first_blocks[kMost + 1] = {};
  int count = 0;

  __device__ __forceinline__ int parameter_of(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_blocks[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

template <class T, class S>
__device__ __forceinline__ void load_each(const UpdateOperand& from, std::int64_t i, std::uint32_t count, bool is_packed,
                                          T (&to)[kEach]) {
  if (std::is_same_v<T, S> || from.is_wide)
    cuda::load_values(static_cast<const T*>(from.address) + i, count, to, is_packed);
  else
    cuda::load_values(static_cast<const S*>(from.address) + i, count, to, is_packed);
#pragma unroll
  for (int j = 0; j < kEach; ++j) to[j] = cuda::math::flushed(to[j]);
}

// Rounds to S: to nearest, or with bits kShift … kShift + 15 of the elements' words.
template <class S, int kShift>
__device__ __forceinline__ S rounded_to(float value, bool is_stochastic, std::uint32_t word) {
  if constexpr (sizeof(S) == 2) {
    if (is_stochastic) return cuda::round_stochastic(S{}, value, (word >> kShift) & 0xffffu);
  }
  return cuda::narrow<S>(value);
}

// A state: finite values that f16 would make infinite become its largest number.
template <class T, class S, int kShift>
__device__ __forceinline__ void store_state(const UpdateOperand& to, std::int64_t i, std::uint32_t count, bool is_packed,
                                            const T (&from)[kEach], bool is_stochastic, const std::uint32_t (&words)[kEach]) {
  if (std::is_same_v<T, S> || to.is_wide) return cuda::store_values(static_cast<T*>(to.address) + i, count, from, is_packed);
  if constexpr (!std::is_same_v<T, S>) {
    S rounded[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      float value = from[j];
      if constexpr (std::is_same_v<S, cuda::half>)
        value = cuda::math::is_finite(value) ? fminf(fmaxf(value, -65504.0f), 65504.0f) : value;
      rounded[j] = rounded_to<S, kShift>(value, is_stochastic, words[j]);
    }
    cuda::store_values(static_cast<S*>(to.address) + i, count, rounded, is_packed);
  }
}

template <class Step, class T, class S>
__global__ __launch_bounds__(kThreads) void update(const __grid_constant__ UpdateTable<Step> table) {
  static_assert(sizeof table <= 4096);
  constexpr int kStates = Step::kStates;
  const int which = table.parameter_of(blockIdx.x);
  const UpdateArguments<Step> k = table.parameters[which];  // a copy: nvcc takes packed stores apart whose address it reads from the table
  if (k.guard != nullptr && !cuda::math::is_finite(*k.guard)) return;
  const unsigned first_block = table.first_blocks[which], num_blocks = table.first_blocks[which + 1] - first_block;
  int lost = 0, non_finite = 0;
  const std::int64_t stride = std::int64_t(num_blocks) * kThreads * kEach;
  for (std::int64_t i = (std::int64_t(blockIdx.x - first_block) * kThreads + threadIdx.x) * kEach; i < k.numel; i += stride) {
    const std::uint32_t count = k.numel - i < kEach ? std::uint32_t(k.numel - i) : kEach;
    T p[kEach], g[kEach], states[kStates][kEach] = {}, old[kEach], change[kEach];
    load_each<T, S>(k.source, i, count, k.is_packed, p);
    load_each<T, S>(k.grad, i, count, k.is_packed, g);
    if (k.has_states) {
#pragma unroll
      for (int s = 0; s < kStates; ++s) load_each<T, S>(k.states[s], i, count, k.is_packed, states[s]);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      T state[kStates];
#pragma unroll
      for (int s = 0; s < kStates; ++s) state[s] = states[s][j];
      old[j] = p[j];
      k.step(p[j], g[j], state, change[j]);
#pragma unroll
      for (int s = 0; s < kStates; ++s) states[s][j] = state[s];
    }
    std::uint32_t words[kEach] = {};
    if (k.has_states) {
      if (k.draws_state) k.state_words.words(k.first_element + std::uint64_t(i), words);
      store_state<T, S, 0>(k.states[0], i, count, k.is_packed, states[0], k.draws_state, words);
      if constexpr (kStates > 1) store_state<T, S, 16>(k.states[1], i, count, k.is_packed, states[1], k.draws_state, words);
    }
    if constexpr (std::is_same_v<T, S>) {
      cuda::store_values(static_cast<T*>(k.parameter.address) + i, count, p, k.is_packed);
#pragma unroll
      for (int j = 0; j < kEach; ++j) non_finite += std::uint32_t(j) < count && !cuda::math::is_finite(p[j]);
    } else {
      if (k.draws_parameter) k.parameter_words.words(k.first_element + std::uint64_t(i), words);
      S rounded[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) rounded[j] = rounded_to<S, 0>(p[j], k.draws_parameter, words[j]);
      cuda::store_values(static_cast<S*>(k.parameter.address) + i, count, rounded, k.is_packed);
      if (k.has_master) cuda::store_values(static_cast<T*>(k.source.address) + i, count, p, k.is_packed);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const T stored = cuda::widen(rounded[j]), now = k.has_master ? p[j] : stored;
        lost += std::uint32_t(j) < count && change[j] != T(0) && now == old[j];
        non_finite += std::uint32_t(j) < count && !cuda::math::is_finite(stored);
      }
    }
  }
  REFRAIN_SHARED(int, slots, [2][kThreads / cuda::kWarp]);
  if (k.num_lost != nullptr) {
    const int sum = cuda::block_reduce<kThreads, cuda::Add>(lost, slots[0]);
    if (threadIdx.x == 0 && sum != 0) atomicAdd(k.num_lost, static_cast<unsigned long long>(sum));
  }
  if (k.num_non_finite != nullptr) {
    const int sum = cuda::block_reduce<kThreads, cuda::Add>(non_finite, slots[1]);
    if (threadIdx.x == 0 && sum != 0) atomicAdd(k.num_non_finite, static_cast<unsigned long long>(sum));
  }
}

template <class T, class S>
__global__ __launch_bounds__(kThreads) void scale(S* out, std::int64_t numel, T factor, bool is_packed) {
  const std::int64_t i = (std::int64_t(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (i >= numel) return;
  const std::uint32_t count = numel - i < kEach ? std::uint32_t(numel - i) : kEach;
  T values[kEach];
  cuda::load_values(out + i, count, values, is_packed);
#pragma unroll
  for (int j = 0; j < kEach; ++j) values[j] *= factor;
  cuda::store_values(out + i, count, values, is_packed);
}

unsigned blocks_for(std::int64_t numel) { return unsigned(cuda::ceil_div(numel, kThreads * kEach)); }

// Whether kEach neighbours can be read at once.
bool takes_packs(const TensorArg& arg, const std::byte* address) {
  return cuda::is_aligned(address, std::min<std::size_t>(16, kEach * size_of(arg.dtype())));
}

template <class Arg>
UpdateOperand operand(const Arg& arg, bool& is_packed) {
  is_packed = is_packed && takes_packs(arg, arg.address());
  return {const_cast<std::byte*>(static_cast<const std::byte*>(arg.address())), !is_16_bit(arg.dtype())};
}

template <class Step, class K, class... States>
UpdateArguments<Step> arguments_of(const K& k, const States&... states) {
  RandomKey state_key = k.rounding.key;
  ++state_key.call;
  const bool has_master = k.master.defined(), has_states = (states.defined() && ...),
             is_stochastic = k.rounding.mode == Rounding::stochastic;
  const bool rounds_state = is_16_bit(k.out.dtype()) && ((states.defined() && states.dtype() != DType::f32) || ...);
  const auto counter = [](const OptionalOut& out) { return out.has_bytes() ? out.data<unsigned long long>() : nullptr; };
  bool is_packed = true;
  const UpdateOperand grad = operand(k.grad, is_packed), parameter = operand(k.out, is_packed);
  const UpdateOperand source = has_master ? operand(k.master, is_packed) : parameter;
  return {.numel = k.out.numel(),
          .grad = grad,
          .parameter = parameter,
          .source = source,
          .states = {operand(states, is_packed)...},
          .num_lost = counter(k.num_lost),
          .num_non_finite = counter(k.num_non_finite),
          .guard = k.guard.has_bytes() ? k.guard.template data<double>() : nullptr,
          .first_element = std::uint64_t(k.rounding.first_element),
          .parameter_words = RandomStream(k.rounding.key),
          .state_words = RandomStream(state_key),
          .step = Step(k),
          .draws_parameter = is_stochastic && !has_master,
          .draws_state = is_stochastic && rounds_state,
          .has_master = has_master,
          .has_states = has_states,
          .is_packed = is_packed};
}
template <class Step>
UpdateArguments<Step> arguments_of(const SgdUpdate& k) {
  return arguments_of<Step>(k, k.momentum_buffer);
}
template <class Step>
UpdateArguments<Step> arguments_of(const AdamUpdate& k) {
  return arguments_of<Step>(k, k.mean, k.square);
}

// Those of the updates whose parameters are of S.
template <class Step, class T, class S, class K>
void start(const Cuda& device, std::string_view name, std::span<const K> updates, DType dtype) {
  UpdateTable<Step> table;
  const auto flush = [&] {
    if (table.count == 0) return;
    cuda::launch(name, update<Step, T, S>, {.grid = table.first_blocks[table.count], .block = kThreads}, device, table);
    table.count = 0;
  };
  for (const K& k : updates) {
    if (k.out.dtype() != dtype || !k.out.has_bytes() || k.out.numel() == 0) continue;
    if (table.count == table.kMost) flush();
    table.parameters[table.count] = arguments_of<Step>(k);
    const unsigned blocks = unsigned(std::min<std::int64_t>(blocks_for(k.out.numel()), kMostBlocks));
    table.first_blocks[table.count + 1] = table.first_blocks[table.count] + blocks;
    ++table.count;
  }
  flush();
}

template <template <class> class Step, class K>
void start(const Cuda& device, std::string_view name, std::span<const K> updates) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    cuda::dispatch_floating(dtype, name, [&](auto storage) {
      using T = cuda::accumulator<decltype(storage)>;
      start<Step<T>, T, decltype(storage)>(device, name, updates, dtype);
    });
  }
}

}  // namespace update_kernels

void run(Cuda device, const SgdUpdate& k) { update_kernels::start<update_kernels::SgdStep>(device, k.name, std::span(&k, 1)); }
void run(Cuda device, const AdamUpdate& k) { update_kernels::start<update_kernels::AdamStep>(device, k.name, std::span(&k, 1)); }
void run(Cuda device, const SgdUpdates& k) { update_kernels::start<update_kernels::SgdStep>(device, k.name, k.updates); }
void run(Cuda device, const AdamUpdates& k) { update_kernels::start<update_kernels::AdamStep>(device, k.name, k.updates); }

void run(Cuda device, const ZeroInPlace& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  cuda::check_cuda(cudaMemsetAsync(k.out.address(), 0, std::size_t(k.out.bytes()), static_cast<cudaStream_t>(device.stream)),
                   k.name);
}

void run(Cuda device, const ScaleInPlace& k) {
  using namespace update_kernels;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  cuda::dispatch_floating(k.out.dtype(), k.name, [&](auto storage) {
    using S = decltype(storage);
    using T = cuda::accumulator<S>;
    cuda::launch(k.name, scale<T, S>, {.grid = blocks_for(k.out.numel()), .block = kThreads}, device, cuda::data_of<S>(k.out),
                 k.out.numel(), T(k.factor), takes_packs(k.out, k.out.address()));
  });
}

}  // namespace refrain
