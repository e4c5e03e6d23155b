#include "text/jinja/template.h"

#include <exception>
#include <new>
#include <utility>

#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"
#include "text/jinja/resolve.h"

namespace monolayer::jinja {

struct Parsed {
  std::string name;
  Limits limits;
  Body body;
  FrameLayout layout;
};

namespace {

Status located(const std::string& name, const Failure& failure, int line) {
  if (failure.line > 0) line = failure.line;
  std::string message = failure.message;
  if (line > 0) message = "line " + std::to_string(line) + ": " + message;
  return {failure.code, name, std::move(message)};
}

// Runs `work`; whatever it throws becomes a Status.
template <typename Work>
Status guarded(const std::string& name, const int& line, const Work& work) {
  try {
    work();
    return ok_status();
  } catch (const Failure& failure) {
    return located(name, failure, line);
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, name, "out of memory"};
  } catch (const std::exception& error) {
    return {Code::kInternal, name, error.what()};
  }
}

}  // namespace

Result<Template> Template::parse(std::string_view source, std::string name, const Limits& limits) {
  if (source.size() > limits.source_bytes) {
    return Status(Code::kResourceExhausted, std::move(name),
                  "template of " + std::to_string(source.size()) + " bytes: at most " +
                      std::to_string(limits.source_bytes));
  }
  auto parsed = std::make_shared<Parsed>();
  parsed->name = std::move(name);
  parsed->limits = limits;
  const int no_line = 0;
  ML_RETURN_IF_ERROR(guarded(parsed->name, no_line, [&] {
    parsed->body = Parser(source, limits).parse();
    parsed->layout = resolve(parsed->body);
  }));
  return Template(std::move(parsed));
}

Result<Rendered> Template::render(const Value& variables, const RenderOptions& options) const {
  if (!variables.is(Kind::kDict)) {
    return Status(Code::kInvalidArgument, parsed_->name, "the variables are not a mapping");
  }
  Evaluator evaluator(parsed_->limits, variables, options.now);
  Rendered rendered;
  ML_RETURN_IF_ERROR(guarded(parsed_->name, evaluator.rt.line, [&] {
    const Value text = evaluator.run(parsed_->body, parsed_->layout);
    rendered.text = text.str().bytes;
    rendered.untrusted = text.str().marks;
  }));
  return rendered;
}

}  // namespace monolayer::jinja
