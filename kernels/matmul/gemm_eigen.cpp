// Eigen engine: always there, f32 and f64 (16-bit operands come here widened, a block at a time), one thread.
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_MPL2_ONLY
#include <refrain/kernels/matmul/gemm_engine.h>

#include <Eigen/Core>

namespace refrain::detail {

namespace {

template <class T> using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T> using ColMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
template <class M> using View = Eigen::Map<M, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class MatrixA, class MatrixB, class T>
void multiply(const TileCall<T>& call) {
  const View<const MatrixA> a(call.a.data, call.m, call.k, Eigen::OuterStride<>(call.a.ld));
  const View<const MatrixB> b(call.b.data, call.k, call.n, Eigen::OuterStride<>(call.b.ld));
  View<RowMajor<T>> c(call.c, call.m, call.n, Eigen::OuterStride<>(call.ldc));
  if (call.beta == T(0)) c.setZero();  // never read: it may hold NaN
  else if (call.beta != T(1)) c *= call.beta;
  c.noalias() += call.alpha * (a * b);
}

template <class T>
void dispatch(const TileCall<T>& call) {
  if (call.a.transposed && call.b.transposed) multiply<ColMajor<T>, ColMajor<T>>(call);
  else if (call.a.transposed) multiply<ColMajor<T>, RowMajor<T>>(call);
  else if (call.b.transposed) multiply<RowMajor<T>, ColMajor<T>>(call);
  else multiply<RowMajor<T>, RowMajor<T>>(call);
}

}  // namespace

void eigen_tile(const TileCall<float>& call) { dispatch(call); }
void eigen_tile(const TileCall<double>& call) { dispatch(call); }

}  // namespace refrain::detail
