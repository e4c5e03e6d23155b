// Ranks as processes of one host. They share one anonymous file (memfd): it has no name in any file
// system and is gone with the last process, whichever way that ends.
#pragma once

#include <memory>
#include <string>

#include "core/deadline.h"
#include "core/status.h"
#include "tp/group.h"

namespace monolayer::tp {

// A new anonymous file for a group, for processes that inherit it (close-on-exec is set: clear it
// to pass it through exec). The caller closes it; groups hold their own duplicates.
Result<int> create_group_memory();

// Collective: rank `rank` of `size` over memory from create_group_memory(). Waits until all ranks
// are there. A rank whose process ends without close() fails the group at once; one that only stops
// answering does so when a deadline passes.
Result<std::unique_ptr<Group>> join_process_group(int memory, int rank, int size,
                                                  const Deadline& deadline = Deadline());

// For processes that share nothing but a text: the launcher makes a token and hands it to all. They
// meet at an abstract socket named after it (nothing in the file system), where rank 0 hands out
// the memory to processes of the same user. The token is 1 to 64 letters, digits and dashes.
std::string new_meeting_token();
Result<std::unique_ptr<Group>> meet_process_group(const std::string& token, int rank, int size,
                                                  const Deadline& deadline = Deadline());

}  // namespace monolayer::tp
