// How many tensors become few messages: which elements of which tensor travel together, in one order on all ranks. Internal.
#pragma once

#include <refrain/core/tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace refrain::detail {

// Elements begin … end of tensor `index`, which lie at `offset` of their bucket.
struct BucketPart {
  std::int64_t index = 0, begin = 0, end = 0, offset = 0;
  std::int64_t numel() const { return end - begin; }
};

struct Bucket {
  DType dtype = DType::f32;
  std::vector<BucketPart> parts = {};
  std::int64_t numel = 0;  // with what lies between parts
};

struct BucketItem {
  std::int64_t numel = 0;
  DType dtype = DType::f32;  // that it travels in
};

enum class Cut : std::uint8_t {
  whole,   // an item is in one bucket, however large
  pieces,  // items above bucket_bytes are cut into pieces of that size, the last one smaller
};

// Items in the order given, each dtype into buckets of its own, closed when the next item would take them beyond
// `bucket_bytes`; buckets in the order in which their last items come. Parts begin at multiples of 64 bytes. Throws
// InvalidArgument unless bucket_bytes is positive.
std::vector<Bucket> fill_buckets(std::span<const BucketItem> items, std::span<const std::int64_t> order,
                                 std::int64_t bucket_bytes, Cut cut);

// `numel` elements of a contiguous tensor from `begin` on, as one row.
Tensor flat_part(const Tensor& t, std::int64_t begin, std::int64_t numel);

}  // namespace refrain::detail
