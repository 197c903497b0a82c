#include <refrain/core/io/convert_floating.h>
#include <refrain/core/io/safetensors.h>
#include <refrain/core/view.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

namespace refrain {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and read without a copy");

namespace {

constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;  // of values that are converted, or not in the host's memory

// Calls f(elements [at, at + count) of a contiguous tensor, at), count being `most` but for the last.
template <class F>
void for_each_block(const Tensor& contiguous, std::int64_t most, F&& f) {
  const Tensor flat = view::reshape(contiguous, {contiguous.numel()});
  for (std::int64_t at = 0; at < flat.numel(); at += most) f(view::slice(flat, 0, at, std::min(at + most, flat.numel())), at);
}

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypes[] = {{DType::f64, "F64"}, {DType::f32, "F32"}, {DType::f16, "F16"}, {DType::bf16, "BF16"},
                                 {DType::i64, "I64"}, {DType::i32, "I32"}, {DType::u8, "U8"},   {DType::boolean, "BOOL"}};

std::string_view file_name_of(DType dtype) {
  for (const DTypeName& entry : kDTypes)
    if (entry.dtype == dtype) return entry.name;
  fail<InternalError>("unknown dtype");
}

// Takes the header's JSON event by event and accepts nothing but the format's own shape, so that a hostile header
// cannot make a document tree many times its size.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::string file, std::vector<SafetensorsFile::Entry>& entries, SafetensorsMetadata& metadata)
      : file_(std::move(file)), entries_(entries), metadata_(metadata) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { unexpected(concat(value).c_str()); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(text.c_str()); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > std::uint64_t{1} << 62) refuse("extent ", value, " is too large");
      if (shape_->size() == kMaxDims) refuse("more than ", kMaxDims, " dims");
      shape_->push_back(std::int64_t(value));
    } else if (state_ == State::offsets) {
      if (value > std::uint64_t{1} << 62) refuse("offset ", value, " is past the end of the file");
      if (offsets_->size() == 2) refuse("data_offsets must be two numbers");
      offsets_->push_back(std::int64_t(value));
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::metadata) {
      metadata_[key_] = text;
    } else if (state_ == State::tensor && key_ == "dtype") {
      for (const DTypeName& entry : kDTypes)
        if (entry.name == text) dtype_ = entry.dtype;
      if (!dtype_) refuse("dtype ", text, " is not one this reader knows");
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::start) {
      state_ = State::names;
    } else if (state_ == State::names) {
      state_ = name_ == kMetadataKey ? State::metadata : State::tensor;
      keys_.clear();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& text) override {
    if (state_ == State::names) {
      name_ = text;
      if (!names_.insert(text).second) refuse("the name occurs twice");
      return true;
    }
    key_ = text;
    if (!keys_.insert(text).second) refuse("key '", text, "' occurs twice");
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) add_entry();
    state_ = state_ == State::names ? State::end : State::names;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::tensor && key_ == "shape") {
      state_ = State::shape;
      shape_.emplace();
    } else if (state_ == State::tensor && key_ == "data_offsets") {
      state_ = State::offsets;
      offsets_.emplace();
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    state_ = State::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail<DataError>(file_, ": the safetensors header is not valid JSON at byte ", position);
  }

 private:
  enum class State { start, names, metadata, tensor, shape, offsets, end };

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<DataError>(file_, ": tensor '", name_, "': ", parts...);
  }
  [[noreturn]] void unexpected(const char* what) const { refuse("unexpected ", what, " in the safetensors header"); }

  void add_entry() {
    if (!dtype_ || !shape_ || !offsets_ || offsets_->size() != 2) refuse("expected dtype, shape and two data_offsets");
    const std::int64_t begin = (*offsets_)[0], end = (*offsets_)[1];
    if (begin > end) refuse("data_offsets [", begin, ", ", end, "] are reversed");
    std::int64_t bytes = std::int64_t(size_of(*dtype_));
    bool is_empty = false;  // [0, 2^60, 2^60] is no overflow
    for (const std::int64_t extent : *shape_) is_empty |= extent == 0;
    for (const std::int64_t extent : *shape_)
      if (!is_empty && __builtin_mul_overflow(bytes, extent, &bytes)) refuse("shape ", *shape_, " is larger than any file");
    if (is_empty) bytes = 0;
    if (bytes != end - begin) refuse("shape ", *shape_, " of ", *dtype_, " takes ", bytes, " bytes, data_offsets hold ", end - begin);
    entries_.push_back({name_, *dtype_, *shape_, begin, end});
    dtype_.reset();
    shape_.reset();
    offsets_.reset();
  }

  std::string file_;
  std::vector<SafetensorsFile::Entry>& entries_;
  SafetensorsMetadata& metadata_;
  State state_ = State::start;
  std::string name_, key_;
  std::set<std::string, std::less<>> names_, keys_;
  std::optional<DType> dtype_;
  std::optional<Shape> shape_;
  std::optional<Dims> offsets_;
};

// The tensors must cover the data without holes, overlaps or a rest.
void check_coverage(const std::string& file, std::vector<SafetensorsFile::Entry>& entries, std::int64_t data_bytes) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t position = 0;
  for (const SafetensorsFile::Entry& entry : entries) {
    check<DataError>(entry.end <= data_bytes, file, ": tensor '", entry.name, "': data_offsets [", entry.begin, ", ", entry.end,
                     "] run past the end of the data (", data_bytes, " bytes)");
    check<DataError>(entry.begin == position, file, ": tensor '", entry.name, "': data begins at ", entry.begin, ", expected ", position,
                     entry.begin < position ? " (it overlaps the tensor before it)" : " (a hole)");
    position = entry.end;
  }
  check<DataError>(position == data_bytes, file, ": ", data_bytes - position, " bytes after the last tensor belong to none");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string name = path.string();
  check<DataError>(file_.size() >= 8, name, ": expected a safetensors file of at least 8 bytes, found ", file_.size());
  std::uint64_t header_bytes = 0;
  file_.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  check<DataError>(header_bytes <= std::uint64_t(kMaxHeaderBytes), name, ": header of ", header_bytes, " bytes, expected at most ", kMaxHeaderBytes);
  check<DataError>(std::int64_t(header_bytes) <= file_.size() - 8, name, ": header of ", header_bytes, " bytes in a file of ", file_.size());
  std::string header(std::size_t(header_bytes), '\0');
  file_.read(8, std::as_writable_bytes(std::span(header.data(), header.size())));
  check<DataError>(header.starts_with('{'), name, ": the safetensors header does not begin with '{'");
  data_start_ = 8 + std::int64_t(header_bytes);

  HeaderReader reader(name, entries_, metadata_);
  nlohmann::json::sax_parse(header, &reader);
  check_coverage(name, entries_, file_.size() - data_start_);
  for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void SafetensorsFile::read_into(std::string_view name, const Tensor& tensor, OtherPrecision other) const {
  const Entry* entry = find(name);
  check<DataError>(entry == nullptr || entry->shape == tensor.shape(), path().string(), ": tensor '", name, "': expected ", tensor.dtype(), " ",
                   tensor.shape(), ", found ", entry ? entry->dtype : DType::f32, " ", entry ? entry->shape : Shape());
  read_part_into(name, 0, tensor, other);
}

void SafetensorsFile::read_part_into(std::string_view name, std::int64_t first, const Tensor& tensor, OtherPrecision other) const {
  const Entry* entry = find(name);
  check<DataError>(entry != nullptr, path().string(), ": tensor '", name, "' is missing");
  const bool converts = other == OtherPrecision::convert && is_floating(entry->dtype) && is_floating(tensor.dtype());
  const std::int64_t numel = numel_of(entry->shape);
  check<DataError>(entry->dtype == tensor.dtype() || converts, path().string(), ": tensor '", name, "': expected ", tensor.dtype(), " ",
                   tensor.shape(), ", found ", entry->dtype, " ", entry->shape);
  check<DataError>(0 <= first && first <= numel && tensor.numel() <= numel - first, path().string(), ": tensor '", name, "': expected ",
                   tensor.numel(), " elements from ", first, " on, found ", numel);
  check(tensor.is_contiguous(), "read_into: tensor '", name, "' must be contiguous");
  if (!tensor.has_bytes() || tensor.numel() == 0) return;
  tensor.storage()->bump_version();
  const std::int64_t from_size = std::int64_t(size_of(entry->dtype)), to_size = std::int64_t(size_of(tensor.dtype()));
  const std::int64_t start = data_start_ + entry->begin + first * from_size;
  if (entry->dtype == tensor.dtype() && tensor.is_on_host()) {
    file_.read(start, std::span(tensor.address(), std::size_t(tensor.bytes())));
    return;
  }
  const std::int64_t most = std::min(kBlockBytes / std::max(from_size, to_size), tensor.numel());
  std::vector<std::byte> block(std::size_t(most * from_size)), converted(std::size_t(most * to_size));
  for_each_block(tensor, most, [&](const Tensor& part, std::int64_t at) {
    const std::span<std::byte> in_file = std::span(block).first(std::size_t(part.numel() * from_size));
    const std::span<std::byte> in_memory = std::span(converted).first(std::size_t(part.bytes()));
    file_.read(start + at * from_size, in_file);
    if (entry->dtype == tensor.dtype()) return set_bytes(part, in_file);
    convert_floating(entry->dtype, in_file.data(), tensor.dtype(), in_memory.data(), part.numel());
    set_bytes(part, in_memory);
  });
}

Tensor SafetensorsFile::read(std::string_view name, const Device& device) const {
  const Entry* entry = find(name);
  check<DataError>(entry != nullptr, path().string(), ": tensor '", name, "' is missing");
  Tensor tensor = empty(entry->shape, entry->dtype, device);
  read_into(name, tensor);
  return tensor;
}

void sort_as_stored(std::vector<StoredTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(-std::int64_t(size_of(a.dtype)), a.name) < std::pair(-std::int64_t(size_of(b.dtype)), b.name);
  });
}

void write_safetensors(FileWriter& out, const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata) {
  std::vector<StoredTensor> stored;
  for (const NamedTensor& entry : tensors) {
    check(entry.tensor.defined(), "write_safetensors: no tensor can be stored as '", entry.name, "'");
    stored.push_back({entry.name, entry.tensor.dtype(), entry.tensor.shape(), [tensor = entry.tensor] { return tensor; }});
  }
  write_safetensors(out, std::move(stored), metadata);
}

void write_safetensors(FileWriter& out, std::vector<StoredTensor> tensors, const SafetensorsMetadata& metadata) {
  sort_as_stored(tensors);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::set<std::string> names;
  std::int64_t position = 0;
  for (const StoredTensor& entry : tensors) {
    check(entry.name != kMetadataKey, "write_safetensors: no tensor can be stored as '", entry.name, "'");
    check(names.insert(entry.name).second, "write_safetensors: two tensors are named '", entry.name, "'");
    const std::int64_t bytes = numel_of(entry.shape) * std::int64_t(size_of(entry.dtype));
    nlohmann::ordered_json& json = header[entry.name];
    json["dtype"] = file_name_of(entry.dtype);
    json["shape"] = std::vector<std::int64_t>(entry.shape.begin(), entry.shape.end());
    json["data_offsets"] = {position, position + bytes};
    position += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail<InvalidArgument>("write_safetensors: a name or a metadata value is not UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(std::int64_t(text.size()) <= kMaxHeaderBytes, "write_safetensors: header of ", text.size(), " bytes, the format allows ", kMaxHeaderBytes);

  const std::uint64_t header_bytes = text.size();
  out.write(std::as_bytes(std::span(&header_bytes, 1)));
  out.write(text);
  for (const StoredTensor& entry : tensors) {
    const Tensor values = contiguous_values(entry.values().without_autograd());
    invariant(values.shape() == entry.shape && values.dtype() == entry.dtype, "write_safetensors: '", entry.name, "' changed");
    if (values.is_on_host()) {
      out.write(std::span(values.raw_data(), std::size_t(values.bytes())));
      continue;
    }
    std::vector<std::byte> buffer;
    for_each_block(values, kBlockBytes / std::int64_t(size_of(values.dtype())),
                   [&](const Tensor& part, std::int64_t) { out.write(host_bytes(part, buffer)); });
  }
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata) {
  AtomicFile file(path);
  write_safetensors(file.writer(), tensors, metadata);
  file.commit();
}

}  // namespace refrain
