// The first 50 losses of small models against PyTorch's.
#include <refrain/tests/train/training_losses.h>

using namespace refrain;
using namespace refrain::testing;

TEST_CASE("training: a small vit's losses with sgd and cosine equal PyTorch's", "[fixture]") {
  check_losses("vit_sgd", make_vit, vit_batch, {});
}

TEST_CASE("training: a small vit's losses with adamw equal PyTorch's", "[fixture]") {
  check_losses("vit_adamw", make_vit, vit_batch, {});
}

TEST_CASE("training: a small decoder's losses with sgd and cosine equal PyTorch's", "[fixture]") {
  check_losses("gpt2_sgd", make_gpt2, gpt2_batch, {});
}

TEST_CASE("training: a small decoder's losses with adamw equal PyTorch's, checkpointed too", "[fixture]") {
  check_losses("gpt2_adamw", make_gpt2, gpt2_batch, {});
  check_losses("gpt2_adamw", make_gpt2, gpt2_batch, {.kind = CheckpointKind::nested});
}
