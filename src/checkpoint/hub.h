// Where a model lies on disk: a folder, or a model of a Hugging Face cache. No network.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace monolayer {

// The cache roots, in the order tried: $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else
// $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else $HOME/.cache/huggingface/hub. The first
// variable that is set and not empty decides, as in the hub's own client.
std::string hub_cache_folder();

// `model` is a path to a folder, or "org/name" or "org/name@revision" (a branch, a tag or a commit;
// "main" when left out) found in a cache at <root>/models--org--name. Returns the folder to open.
// kNotFound listing every place looked at; kInvalidArgument for a name with empty parts, "..", or
// NUL; kInvalidFile for a path that is a file or a ref that names no commit.
Result<std::string> resolve_model(const std::string& model,
                                  const std::string& cache_folder = hub_cache_folder());

}  // namespace monolayer
