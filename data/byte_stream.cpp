#include <refrain/data/byte_stream.h>

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>

#include <zlib.h>

#include <algorithm>

namespace refrain {

namespace {

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(std::unique_ptr<FileReader> file) : file_(std::move(file)) {}
  std::size_t read(std::uint8_t* bytes, std::size_t count) override {
    const std::size_t got = file_->read_some(position_, std::as_writable_bytes(std::span(bytes, count)));
    position_ += std::int64_t(got);
    return got;
  }

 private:
  std::unique_ptr<FileReader> file_;
  std::int64_t position_ = 0;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<FileReader> file) : file_(std::move(file)), input_(std::size_t{1} << 16) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    check<InternalError>(inflateInit2(&inflate_, kGzipOnly) == Z_OK, "zlib cannot start");
  }
  ~GzipStream() override { inflateEnd(&inflate_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  std::size_t read(std::uint8_t* bytes, std::size_t count) override {
    std::size_t done = 0;
    while (done < count && !is_done_) {
      if (inflate_.avail_in == 0) refill();
      inflate_.next_out = bytes + done;
      inflate_.avail_out = uInt(std::min(count - done, std::size_t{1} << 30));
      const uInt room = inflate_.avail_out;
      const int result = ::inflate(&inflate_, Z_NO_FLUSH);
      done += room - inflate_.avail_out;
      if (result == Z_STREAM_END) finish_member();
      else check<DataError>(result == Z_OK || result == Z_BUF_ERROR, file_->path().string(), ": the gzip data is damaged (",
                            inflate_.msg ? inflate_.msg : "unknown", ")");
    }
    return done;
  }

 private:
  void refill() {
    const std::size_t got = file_->read_some(position_, std::as_writable_bytes(std::span(input_)));
    check<DataError>(got > 0, file_->path().string(), ": the gzip data ends before its end mark (file cut at ", position_, " bytes)");
    position_ += std::int64_t(got);
    inflate_.next_in = input_.data();
    inflate_.avail_in = uInt(got);
  }

  // Members may follow one another; anything else after the last is refused by the next member's header check.
  void finish_member() {
    if (inflate_.avail_in == 0 && position_ == file_->size()) is_done_ = true;
    else inflateReset(&inflate_);
  }

  std::unique_ptr<FileReader> file_;
  std::vector<std::uint8_t> input_;
  z_stream inflate_{};
  std::int64_t position_ = 0;
  bool is_done_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> ByteStream::open(const std::filesystem::path& path) {
  auto file = std::make_unique<FileReader>(path);
  std::uint8_t magic[2] = {};
  file->read_some(0, std::as_writable_bytes(std::span(magic)));
  if (magic[0] == 0x1f && magic[1] == 0x8b) return std::make_unique<GzipStream>(std::move(file));
  return std::make_unique<PlainStream>(std::move(file));
}

std::int64_t unpacked_size(const std::filesystem::path& path) {
  const FileReader file(path);
  std::uint8_t magic[2] = {}, size[4] = {};
  file.read_some(0, std::as_writable_bytes(std::span(magic)));
  if (magic[0] != 0x1f || magic[1] != 0x8b || file.size() < 18) return file.size();
  file.read(file.size() - 4, std::as_writable_bytes(std::span(size)));
  return std::int64_t(size[0]) | std::int64_t(size[1]) << 8 | std::int64_t(size[2]) << 16 | std::int64_t(size[3]) << 24;
}

std::vector<std::uint8_t> read_growing(ByteStream& stream, std::int64_t expected) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  std::vector<std::uint8_t> bytes;
  while (std::int64_t(bytes.size()) < expected) {
    const std::size_t old = bytes.size(), wanted = std::size_t(std::min(kChunk, expected - std::int64_t(old)));
    bytes.resize(old + wanted);
    const std::size_t got = stream.read(bytes.data() + old, wanted);
    bytes.resize(old + got);
    if (got < wanted) break;
  }
  bytes.shrink_to_fit();
  return bytes;
}

}  // namespace refrain
