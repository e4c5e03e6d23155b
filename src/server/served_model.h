// The model as requests see it, made and tried before anything is served.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "engine/model_loader.h"
#include "server/generation_spec.h"

namespace monolayer::server {

// `length`: tokens of prompt and answer together. `kwargs`: --default-chat-template-kwargs, JSON
// text or empty; kInvalidArgument naming the flag where every chat would fail because of them. A
// folder without a chat template, or with one that makes nothing of a chat, is served without
// chats: `chat_missing` says why.
Result<std::shared_ptr<ServedModel>> served_model(const engine::OpenModel& model,
                                                  std::vector<std::string> names,
                                                  std::int64_t length, const std::string& kwargs);

}  // namespace monolayer::server
