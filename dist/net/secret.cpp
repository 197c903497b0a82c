#include <refrain/dist/net/secret.h>
#include <refrain/dist/rank_lost.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

namespace refrain::detail {

Digest hmac_sha256(std::string_view key, std::string_view bytes) {
  Digest digest;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const bool is_made = HMAC(EVP_sha256(), key.data(), int(key.size()), data, bytes.size(), digest.data(), nullptr) != nullptr;
  check<RendezvousError>(is_made, "OpenSSL has no HMAC-SHA-256");
  return digest;
}

bool is_equal_in_constant_time(const Digest& a, std::string_view b) {
  return b.size() == a.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  check<RendezvousError>(getrandom(bytes.data(), count, 0) == ssize_t(count), "the system gives no random numbers");
  return bytes;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += "0123456789abcdef"[std::uint8_t(c) >> 4];
    text += "0123456789abcdef"[std::uint8_t(c) & 15];
  }
  return text;
}

}  // namespace refrain::detail
