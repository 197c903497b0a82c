// oneDNN engine: f32 through dnnl_sgemm, which keeps no primitives, computes in f32 whatever the library's math mode
// is, and was as fast as the matmul primitive or faster in every shape tried.
#include <refrain/core/check.h>
#include <refrain/kernels/matmul/gemm_engine.h>

#ifdef REFRAIN_HAS_ONEDNN
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#endif

namespace refrain {

#ifdef REFRAIN_HAS_ONEDNN

namespace {

// The OpenMP runtime is whichever one the installed oneDNN was linked with (none in a sequential or TBB build).
struct OpenMp {
  int (*max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

// oneDNN asks OpenMP how many threads it may use. The number belongs to the calling thread and may be an embedder's
// own setting, so it is put back.
class OneThread {
 public:
  OneThread() {
    if (!open_mp().max_threads || !open_mp().set_threads) return;
    old_ = open_mp().max_threads();
    if (old_ != 1) open_mp().set_threads(1);
  }
  ~OneThread() {
    if (old_ > 1) open_mp().set_threads(old_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static const OpenMp& open_mp() {
    static const OpenMp functions;
    return functions;
  }
  int old_ = 1;
};

}  // namespace

bool has_onednn() { return true; }

void detail::onednn_tile(const TileCall<float>& call) {
  const OneThread one_thread;
  const dnnl_status_t status = dnnl_sgemm(call.a.transposed ? 'T' : 'N', call.b.transposed ? 'T' : 'N', call.m, call.n, call.k, call.alpha,
                                          call.a.data, call.a.ld, call.b.data, call.b.ld, call.beta, call.c, call.ldc);
  if (status == dnnl_out_of_memory) fail<OutOfMemory>("gemm: oneDNN found no memory to pack a tile of ", call.m, " x ", call.n, " x ", call.k);
  invariant(status == dnnl_success, "oneDNN refused a tile of ", call.m, " x ", call.n, " x ", call.k, " (status ", int(status), ")");
}

#else

bool has_onednn() { return false; }

void detail::onednn_tile(const TileCall<float>&) { fail<InvalidArgument>("gemm: this build has no oneDNN"); }

#endif

}  // namespace refrain
