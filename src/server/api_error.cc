#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace monolayer::server {
namespace {

std::string dumped(const nlohmann::ordered_json& body) {
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string ApiError::type() const {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
    case 405:
      return "not_found_error";
    case 413:
    case 431:
      return "request_too_large";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "internal_server_error" : "invalid_request_error";
  }
}

std::string ApiError::openai() const {
  nlohmann::ordered_json error = {{"message", message}, {"type", type()}};
  error["param"] = param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(param);
  error["code"] = code.empty() ? nlohmann::ordered_json(status) : nlohmann::ordered_json(code);
  return dumped({{"error", error}});
}

std::string ApiError::anthropic() const {
  return dumped({{"type", "error"}, {"error", {{"type", type()}, {"message", message}}}});
}

}  // namespace monolayer::server
