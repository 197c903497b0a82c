#include <refrain/dist/net/frame.h>
#include <refrain/dist/net/secret.h>
#include <refrain/dist/net/socket.h>
#include <refrain/dist/store/obituary.h>
#include <refrain/dist/store/server.h>

namespace refrain::detail {

std::string obituary_proof_text(std::string_view server_nonce, std::string_view body) {
  return concat("refrain launcher", server_nonce, body);
}

void send_obituary(const Place& place, const std::string& host, const std::string& why) noexcept {
  try {
    const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(500);
    const Socket socket = connect_to(place.master_addr, place.master_port, deadline, false);
    FrameReader reader(kStrangerLimit);
    std::optional<Frame> challenge;
    while (!(challenge = reader.next())) {
      std::string bytes, problem;
      if (!wait_readable(socket, deadline) || !receive_some(socket, bytes, kStrangerLimit, problem)) return;
      reader.add(bytes);
    }
    if (challenge->type != FrameType::challenge || challenge->payload.size() != kNonceBytes) return;
    std::string body = PayloadWriter().number(place.rank).text(host).text(why).bytes();
    const Digest proof = hmac_sha256(place.token, obituary_proof_text(challenge->payload, body));
    body.append(reinterpret_cast<const char*>(proof.data()), proof.size());
    send_some(socket, encode(FrameType::obituary, body));
  } catch (const std::exception&) {  // the store is gone, and its rank with it: others see that by themselves
  }
}

}  // namespace refrain::detail
