// Bodies of /v1/messages, in terms of the chat dialect.
#pragma once

#include "server/generation_spec.h"

namespace monolayer::server {

// `generate` false: only what count_tokens needs; max_tokens may be absent.
ApiResult<GenerationSpec> parse_messages_request(const Json& body, const ServedModel& model,
                                                 const Limits& limits, bool generate);

}  // namespace monolayer::server
