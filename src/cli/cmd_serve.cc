// `monolayer serve`: the name is taken, the server is not there yet.
#include "cli/command.h"

namespace monolayer::cli {

void add_serve(Program& program) {
  CLI::App& app = program.add("serve", "HTTP server (not part of this version)", [] {
    return Status(Code::kUnsupported, "serve",
                  "the HTTP server is not part of this version; generate runs the model");
  });
  // Its flags are those of a server that does not exist: one honest refusal beats a list of them.
  app.allow_extras();
}

}  // namespace monolayer::cli
