#include "engine/memory_check.h"
#include "engine/model_report.h"

namespace monolayer::engine {
namespace {

using Json = nlohmann::json;

std::string number(const Json& json) { return std::to_string(json.get<std::int64_t>()); }
std::string size(const Json& json) { return format_bytes(json.get<std::int64_t>()); }

std::string rank_line(const Json& rank) {
  std::string line = "  TP " + number(rank["size"]) + ": ";
  if (rank.contains("refused")) return line + rank["refused"].get<std::string>() + "\n";
  return line + number(rank["heads"]) + " query heads, " + number(rank["kv_heads"]) +
         " KV heads, qkv rows " + number(rank["qkv_rows"]) + " (sparse " +
         number(rank["qkv_index_rows"]) + "), expert width " + number(rank["expert_width"]) +
         ", shared " + number(rank["shared_width"]) + ", dense " + number(rank["dense_width"]) +
         ", vocabulary rows " + number(rank["vocab_rows"]) + "\n";
}

std::string layer_line(const Json& run) {
  return "  " + number(run["first"]) + "-" + number(run["last"]) + ": " +
         run["attention"].get<std::string>() + " attention, " + run["mlp"].get<std::string>() +
         " MLP\n";
}

std::string format_line(const std::string& part, const std::string& format, const Json& entry) {
  return "  " + part + ": " + format + ", " + number(entry["matrices"]) + " matrices, " +
         size(entry["bytes"]) + "\n";
}

std::string note_line(const Json& note) { return "note: " + note.get<std::string>() + "\n"; }

}  // namespace

std::string model_report_text(const Json& report) {
  const Json& c = report["config"];
  std::string text = report["folder"].get<std::string>() + ": " + number(report["files"]) +
                     " file(s), " + size(report["file_bytes"]) + "; " + number(report["tensors"]) +
                     " tensors, " + size(report["tensor_bytes"]) +
                     "; names: " + report["layout"].get<std::string>() + "\n";
  text += "model: hidden " + number(c["hidden_size"]) + ", " + number(c["num_heads"]) +
          " query and " + number(c["num_kv_heads"]) + " KV heads of " + number(c["head_dim"]) +
          " (rotary " + number(c["rotary_dim"]) + "), vocabulary " + number(c["vocab_size"]) +
          ", positions " + number(c["max_positions"]) + "\n";
  text += "experts: " + number(c["num_experts"]) + " of width " + number(c["expert_width"]) + ", " +
          number(c["experts_per_token"]) + " a token, shared width " + number(c["shared_width"]) +
          ", dense width " + number(c["dense_width"]) + "\n";
  text += "selection: " + number(c["index_heads"]) + " index heads of " + number(c["index_dim"]) +
          ", blocks of " + number(c["block_size"]) + " keys, best " + number(c["topk_blocks"]) +
          " (first " + number(c["init_blocks"]) + " and last " + number(c["local_blocks"]) +
          " always)\n";
  text += "layers:\n";
  for (const Json& run : report["layers"]) text += layer_line(run);
  text += "formats:\n";
  for (const auto& [part, formats] : report["formats"].items())
    for (const auto& [format, entry] : formats.items()) text += format_line(part, format, entry);
  text +=
      "bytes a decoded token reads: " + size(report["weight_bytes_per_token"]) +
      " of weights; caches per token of context: " + size(report["cache_bytes_per_token"]["bf16"]) +
      " in BF16, " + size(report["cache_bytes_per_token"]["fp8_e4m3"]) + " in FP8\n";
  text += "one rank of a tensor-parallel group:\n";
  for (const Json& rank : report["tensor_parallel"]) text += rank_line(rank);
  const Json& ignored = report["ignored"]["tensors"];
  if (!ignored.empty()) {
    text += "ignored: " + std::to_string(ignored.size()) + " tensors, " +
            size(report["ignored"]["bytes"]) + ", first: " + ignored[0].get<std::string>() + "\n";
  }
  for (const Json& note : report["notes"]) text += note_line(note);
  return text;
}

}  // namespace monolayer::engine
