// What a refused request is told.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace monolayer::server {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // path of the field, as in messages[0].role; empty: none
  std::string code;   // a word for programs; empty: none
  int retry_after = 0;

  // invalid_request_error, not_found_error, overloaded_error, authentication_error or
  // internal_server_error, by status.
  std::string type() const;
  // The body of the OpenAI dialect, or of the Anthropic one.
  std::string openai() const;
  std::string anthropic() const;
};

inline ApiError bad_field(std::string path, const std::string& what) {
  ApiError error;
  error.message = path + ": " + what;
  error.param = std::move(path);
  return error;
}

template <typename T>
using ApiResult = std::variant<T, ApiError>;

}  // namespace monolayer::server
