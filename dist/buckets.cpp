#include <refrain/dist/buckets.h>

#include <algorithm>
#include <map>

namespace refrain::detail {

namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

std::vector<Bucket> fill_buckets(std::span<const BucketItem> items, std::span<const std::int64_t> order,
                                 std::int64_t bucket_bytes, Cut cut) {
  check(bucket_bytes > 0, "bucket_bytes: expected more than 0, got ", bucket_bytes);
  std::vector<Bucket> buckets;
  std::map<DType, Bucket> open;
  std::vector<DType> opened;  // the order in which open buckets got their last part
  const auto close = [&](DType dtype) {
    buckets.push_back(std::move(open.at(dtype)));
    open.erase(dtype);
    std::erase(opened, dtype);
  };
  for (const std::int64_t index : order) {
    const BucketItem& item = items[std::size_t(index)];
    const std::int64_t size = std::int64_t(size_of(item.dtype));
    const std::int64_t step = kAlignment / size, most = std::max<std::int64_t>(bucket_bytes / size, 1);
    for (std::int64_t begin = 0; begin < std::max<std::int64_t>(item.numel, 1);) {
      const std::int64_t end = cut == Cut::pieces ? std::min(item.numel, begin + most) : item.numel;
      const auto found = open.find(item.dtype);
      if (found != open.end() && (found->second.numel + step - 1) / step * step + (end - begin) > most) close(item.dtype);
      Bucket& bucket = open.try_emplace(item.dtype, Bucket{.dtype = item.dtype}).first->second;
      const std::int64_t offset = (bucket.numel + step - 1) / step * step;
      bucket.parts.push_back({index, begin, end, offset});
      bucket.numel = offset + (end - begin);
      std::erase(opened, item.dtype);
      opened.push_back(item.dtype);
      begin = std::max(end, begin + 1);
    }
  }
  while (!opened.empty()) close(opened.front());
  return buckets;
}

Tensor flat_part(const Tensor& t, std::int64_t begin, std::int64_t numel) {
  return Tensor(t.storage(), t.device(), t.dtype(), {numel}, {1}, t.offset() + begin);
}

}  // namespace refrain::detail
