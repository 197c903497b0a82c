// How a convolution's columns are cut into chunks that bound the scratch: by shapes alone, the same on every device. Chunks are
// whole images, or rows of one image when that is large already, and follow each other in order.
#pragma once

#include <refrain/kernels/convolution/convolution.h>

#include <algorithm>

namespace refrain {

struct ConvolutionChunk {
  std::int64_t image, images, y, rows;  // rows y … of images image …; several images only with all their rows
  std::int64_t positions_per_image, positions;
};

struct ConvolutionChunkSize {
  std::int64_t images, rows;
  static ConvolutionChunkSize of(const ConvolutionGeometry& g) {
    constexpr std::int64_t kChunkElements = std::int64_t{1} << 20;
    const std::int64_t row = std::max<std::int64_t>(1, g.window() * g.X()), image = row * g.Y();
    if (image <= kChunkElements) return {std::min(g.B, kChunkElements / image), g.Y()};
    return {1, std::max<std::int64_t>(1, kChunkElements / row)};
  }
  // The output positions of the largest chunk.
  std::int64_t positions(const ConvolutionGeometry& g) const { return images * rows * g.X(); }
};

template <class F>
void for_chunks(const ConvolutionGeometry& g, F&& f) {
  const ConvolutionChunkSize size = ConvolutionChunkSize::of(g);
  for (std::int64_t image = 0; image < g.B; image += size.images) {
    for (std::int64_t y = 0; y < g.Y(); y += size.rows) {
      ConvolutionChunk chunk{.image = image, .images = std::min(size.images, g.B - image), .y = y, .rows = std::min(size.rows, g.Y() - y),
                             .positions_per_image = 0, .positions = 0};
      chunk.positions_per_image = chunk.rows * g.X();
      chunk.positions = chunk.positions_per_image * chunk.images;
      f(chunk);
    }
  }
}

}  // namespace refrain
