// The routes before there is a model, on a server that carries nothing.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "server/service.h"

namespace monolayer::server {
namespace {

class NoServer : public HttpServer {
 public:
  std::uint16_t port() const override { return 0; }
  void run(Handler, std::function<void(int)>) override {}
  void post(std::function<void()> work) override { work(); }
  void after(int, std::function<void()>) override {}
  void stop_accepting() override {}
  void stop() override {}
  std::int64_t connections() const override { return 0; }
};

class Answered : public Responder {
 public:
  void respond(int code, const std::string&, std::string text, const Headers& given) override {
    status = code;
    body = std::move(text);
    headers = given;
  }
  void begin(const std::string&, const Headers&) override { status = 200; }
  void write(std::string) override {}
  void end() override {}
  bool busy() const override { return false; }

  int status = 0;
  std::string body;
  Headers headers;
};

std::shared_ptr<Answered> ask(Service& service, const std::string& method,
                              const std::string& path) {
  auto out = std::make_shared<Answered>();
  HttpRequest request;
  request.method = method;
  request.path = path;
  service.handle(std::move(request), out);
  return out;
}

TEST(Service, Conformance2_HealthIs503BeforeTheModelIsThere) {
  NoServer http;
  Service service(http, {});
  for (const char* path : {"/health", "/ready"}) {
    const auto answer = ask(service, "GET", path);
    EXPECT_EQ(answer->status, 503);
    EXPECT_NE(answer->body.find("loading"), std::string::npos) << answer->body;
  }
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/messages"}) {
    const auto answer = ask(service, "POST", path);
    EXPECT_EQ(answer->status, 503);
    ASSERT_EQ(answer->headers.size(), 1U);
    EXPECT_EQ(answer->headers.front().first, "Retry-After");
    EXPECT_TRUE(Json::accept(answer->body));
  }
}

TEST(Service, AKeyIsWantedEvenWhileLoading) {
  NoServer http;
  ServiceOptions options;
  options.api_key = "k";
  Service service(http, options);
  EXPECT_EQ(ask(service, "GET", "/health")->status, 503);
  EXPECT_EQ(ask(service, "GET", "/v1/models")->status, 401);
}

}  // namespace
}  // namespace monolayer::server
