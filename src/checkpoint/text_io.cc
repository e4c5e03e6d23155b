#include "checkpoint/text_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/file.h"
#include "core/json_text.h"

namespace monolayer {

std::string quote_name(std::string_view name) {
  constexpr std::size_t kLimit = 120;
  std::string text = "'";
  if (name.size() <= kLimit) return text.append(name).append("'");
  text.append(name.substr(0, kLimit - 40)).append("...").append(name.substr(name.size() - 30));
  return text.append("' (").append(std::to_string(name.size())).append(" bytes)");
}

Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  ML_ASSIGN_OR_RETURN(const OpenFile file, OpenFile::open_regular(path));
  if (file.size() > max_bytes) {
    return Status(Code::kInvalidFile, path,
                  "holds " + std::to_string(file.size()) + " bytes, at most " +
                      std::to_string(max_bytes) + " are read");
  }
  std::string text(file.size(), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.fd(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status(Code::kIoError, path, std::string("read: ") + std::strerror(errno));
    if (got == 0) return Status(Code::kIoError, path, "became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
  return text;
}

std::string_view known_format(std::string_view first_bytes) {
  std::string_view text = first_bytes;
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  while (!text.empty() && (text[0] == ' ' || text[0] == '\n' || text[0] == '\r' || text[0] == '\t'))
    text.remove_prefix(1);
  const auto starts = [&](std::string_view prefix) {
    if (text.size() < prefix.size()) return false;
    for (std::size_t i = 0; i < prefix.size(); ++i) {
      const char c = text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
      if (c != prefix[i]) return false;
    }
    return true;
  };
  if (starts("<!doctype") || starts("<html") || starts("<head") || starts("<?xml"))
    return "an HTML or XML page";
  if (first_bytes.substr(0, 4) == "GGUF") return "a GGUF file";
  if (starts("version https://git-lfs")) return "a Git LFS pointer, not the file itself";
  if (first_bytes.substr(0, 4) == std::string_view("PK\x03\x04", 4))
    return "a zip archive (a PyTorch checkpoint?)";
  if (first_bytes.substr(0, 2) == "\x1f\x8b") return "a gzip archive";
  return {};
}

namespace {

struct JsonRefusal {
  std::string message;
};

// Called by the parser for every event; keeps the keys of each open object.
class KeyWatch {
 public:
  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        if (depth >= kMaxJsonDepth)
          throw JsonRefusal{"nested deeper than " + std::to_string(kMaxJsonDepth) + " levels"};
        keys_.emplace_back();
        break;
      case Event::object_end:
      case Event::array_end:
        keys_.pop_back();
        break;
      case Event::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second)
          throw JsonRefusal{"key " + quote_name(key) + " appears twice in one object"};
        break;
      }
      case Event::value:
        break;
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& file) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return Status(Code::kInvalidFile, file, "is empty, expected JSON");
  const std::string_view known = known_format(text.substr(0, 256));
  if (!known.empty())
    return Status(Code::kInvalidFile, file, "is " + std::string(known) + ", expected JSON");
  if (const std::string nul = nul_in_json(text); !nul.empty())
    return Status(Code::kInvalidFile, file, "is not valid JSON: " + nul);
  try {
    KeyWatch watch;
    return nlohmann::json::parse(text.begin(), text.end(), std::ref(watch));
  } catch (const JsonRefusal& refusal) {
    return Status(Code::kInvalidFile, file, refusal.message);
  } catch (const nlohmann::json::parse_error& error) {
    return Status(Code::kInvalidFile, file,
                  "is not valid JSON at byte " + std::to_string(std::min(error.byte, text.size())) +
                      " of " + std::to_string(text.size()));
  } catch (const nlohmann::json::exception&) {
    return Status(Code::kInvalidFile, file, "holds a number beyond the range of a double");
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, file,
                  "not enough memory to parse " + std::to_string(text.size()) + " bytes of JSON");
  }
}

}  // namespace monolayer
