// Name layouts: the same weights under any supported spelling give the same bits, and what does not
// fit is refused with names.
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "m3/reference.h"
#include "m3/tensor_set.h"
#include "m3/weights.h"
#include "oracle_case.h"

namespace monolayer::m3 {
namespace {

using testing_files::TempDir;

struct Loaded {
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;
  ModelWeights weights;
};

Result<Loaded> load(const std::string& folder) {
  Loaded loaded;
  ML_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  loaded.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  ML_ASSIGN_OR_RETURN(loaded.config, parse_config(loaded.checkpoint->config(), "config.json"));
  ML_ASSIGN_OR_RETURN(loaded.weights, bind_weights(loaded.config, *loaded.checkpoint));
  return loaded;
}

std::string case_folder(const std::string& name) {
  return std::string(MONOLAYER_SOURCE_DIR) + "/tests/data/oracle/" + name;
}

TensorSet tensors_of(const std::string& name) {
  auto checkpoint = Checkpoint::open(case_folder(name));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  return TensorSet::of(*checkpoint);
}

// Logits of a fixed prompt that reaches past topk x block tokens in `tiny`.
std::vector<float> logits_of(const Loaded& loaded) {
  std::vector<std::int32_t> ids;
  ids.reserve(120);
  for (std::int32_t i = 0; i < 120; ++i) {
    ids.push_back(static_cast<std::int32_t>((i * 37 + 11) % loaded.config.vocab_size));
  }
  Reference reference(loaded.config, loaded.weights);
  auto logits = reference.forward(ids, 8, nullptr);
  EXPECT_TRUE(logits.ok()) << logits.status().to_string();
  return logits.ok() ? *logits : std::vector<float>();
}

std::string layer(const std::string& prefix, int i) {
  return prefix + "layers." + std::to_string(i) + ".";
}
std::string expert(const std::string& moe, std::int64_t e) {
  return moe + "experts." + std::to_string(e) + ".";
}

struct Names {
  std::string prefix;
  int layers = 3;
  int experts = 0;
  std::string moe(int i) const { return layer(prefix, i) + "block_sparse_moe."; }
};

// What transformers keeps in memory: stacked experts, packed gate and up, indexer.*, the bias in
// the gate, everything under mlp.
void as_transformers(TensorSet& set, const Names& names) {
  for (int i = 0; i < names.layers; ++i) {
    const std::string attention = layer(names.prefix, i) + "self_attn.";
    const std::string mlp = layer(names.prefix, i) + "mlp.";
    if (i == 0) {
      set.merge({mlp + "gate_proj", mlp + "up_proj"}, mlp + "gate_up_proj", false);
      continue;
    }
    for (const char* part : {"q_proj", "k_proj", "q_norm", "k_norm"}) {
      set.rename(attention + "index_" + part + ".weight",
                 attention + "indexer." + part + ".weight");
    }
    const std::string moe = names.moe(i);
    std::vector<std::string> up, down;
    for (int e = 0; e < names.experts; ++e) {
      set.merge({expert(moe, e) + "w1", expert(moe, e) + "w3"}, expert(moe, e) + "both", false);
      up.push_back(expert(moe, e) + "both");
      down.push_back(expert(moe, e) + "w2");
    }
    set.merge(up, mlp + "experts.gate_up_proj", true, "", "_scale");
    set.merge(down, mlp + "experts.down_proj", true, "", "_scale");
    const std::string shared = mlp + "shared_experts.";
    set.rename_all(moe + "shared_experts.", shared);
    set.merge({shared + "gate_proj", shared + "up_proj"}, shared + "gate_up_proj", false);
    set.rename(moe + "gate.weight", mlp + "gate.weight");
    set.rename(moe + "e_score_correction_bias", mlp + "gate.e_score_correction_bias");
  }
}

void shared_as_last_expert(TensorSet& set, const Names& names) {
  for (int i = 1; i < names.layers; ++i) {
    const std::string moe = names.moe(i);
    const std::pair<const char*, const char*> parts[] = {
        {"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}};
    for (const auto& [from, to] : parts) {
      const std::string source = moe + "shared_experts." + from;
      const std::string target = expert(moe, names.experts) + to;
      for (const char* suffix : {".weight", ".weight_scale"}) {
        if (set.has(source + suffix)) set.rename(source + suffix, target + suffix);
      }
    }
  }
}

// Stacked with separate gate, up and down tables; with the shared expert if it is the last one.
void stack_apart(TensorSet& set, const Names& names, int count) {
  for (int i = 1; i < names.layers; ++i) {
    const std::pair<const char*, const char*> parts[] = {
        {"w1", "gate_proj"}, {"w3", "up_proj"}, {"w2", "down_proj"}};
    for (const auto& [from, to] : parts) {
      std::vector<std::string> modules;
      modules.reserve(static_cast<std::size_t>(count));
      for (int e = 0; e < count; ++e) modules.push_back(expert(names.moe(i), e) + from);
      set.merge(modules, names.moe(i) + "experts." + to, true);
    }
  }
}

void stack_packed(TensorSet& set, const Names& names, int count) {
  for (int i = 1; i < names.layers; ++i) {
    std::vector<std::string> up, down;
    for (int e = 0; e < count; ++e) {
      const std::string one = expert(names.moe(i), e);
      set.merge({one + "w1", one + "w3"}, one + "both", false);
      up.push_back(one + "both");
      down.push_back(one + "w2");
    }
    set.merge(up, names.moe(i) + "experts.gate_up_proj", true, "", "_scale");
    set.merge(down, names.moe(i) + "experts.down_proj", true, "", "_scale");
  }
}

void pack_qkv(TensorSet& set, const Names& names, bool with_index) {
  for (int i = 0; i < names.layers; ++i) {
    const std::string a = layer(names.prefix, i) + "self_attn.";
    std::vector<std::string> modules = {a + "q_proj", a + "k_proj", a + "v_proj"};
    if (with_index && i > 0) {
      modules.push_back(a + "index_q_proj");
      modules.push_back(a + "index_k_proj");
    }
    set.merge(modules, a + "qkv_proj", false);
  }
}

struct Layout {
  const char* name;
  std::function<void(TensorSet&, const Names&)> apply;
};

std::vector<Layout> layouts() {
  return {
      {"hub_prefix",
       [](TensorSet& set, const Names& n) {
         set.rename_all(n.prefix, "language_model.model.");
         if (set.has("lm_head.weight"))
           set.rename("lm_head.weight", "language_model.lm_head.weight");
       }},
      {"resaved_prefix",
       [](TensorSet& set, const Names& n) {
         set.rename_all("language_model.lm_head", "lm_head");
         set.rename_all(n.prefix, "model.language_model.");
       }},
      {"text_prefix",
       [](TensorSet& set, const Names& n) {
         set.rename_all("language_model.lm_head", "lm_head");
         set.rename_all(n.prefix, "model.");
       }},
      {"transformers", as_transformers},
      {"stacked_apart", [](TensorSet& set, const Names& n) { stack_apart(set, n, n.experts); }},
      {"shared_is_last", shared_as_last_expert},
      {"shared_last_in_stack",
       [](TensorSet& set, const Names& n) {
         shared_as_last_expert(set, n);
         stack_packed(set, n, n.experts + 1);
       }},
      {"shared_last_in_stack_apart",
       [](TensorSet& set, const Names& n) {
         shared_as_last_expert(set, n);
         stack_apart(set, n, n.experts + 1);
       }},
      {"shared_singular",
       [](TensorSet& set, const Names&) { set.rename_all("shared_experts", "shared_expert"); }},
      {"packed_qkv", [](TensorSet& set, const Names& n) { pack_qkv(set, n, false); }},
      {"packed_qkv_index", [](TensorSet& set, const Names& n) { pack_qkv(set, n, true); }},
      {"vision_beside",
       [](TensorSet& set, const Names& n) {
         for (const char* name : {"vision_tower.patch.weight", "multi_modal_projector.a.weight",
                                  "patch_merge_mlp.b.weight", "mtp.layers.0.weight"}) {
           set.tensors[name] = {"BF16", {2}, std::string(4, '\0')};
         }
         set.tensors[n.prefix + "rotary_emb.inv_freq"] = {"F32", {1}, std::string(4, '\0')};
       }},
  };
}

// Fault 8: every layout loads to exactly equal logits.
TEST(Bind, FaultA8_MlxVlm1374_LayoutsGiveEqualBits) {
  const std::pair<const char*, Names> cases[] = {{"tiny", {"model.", 3, 8}},
                                                 {"mxfp4", {"language_model.model.", 3, 12}}};
  for (const auto& [name, names] : cases) {
    auto original = load(case_folder(name));
    ASSERT_TRUE(original.ok()) << original.status().to_string();
    const std::vector<float> expected = logits_of(*original);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(std::string(name) + " as " + layout.name);
      TensorSet set = tensors_of(name);
      layout.apply(set, names);
      const TempDir folder;
      set.write(folder.path());
      auto changed = load(folder.path());
      ASSERT_TRUE(changed.ok()) << changed.status().to_string();
      const std::vector<float> got = logits_of(*changed);
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
    }
  }
}

TEST(Bind, NamesWhatIsIgnored) {
  TensorSet set = tensors_of("tiny");
  set.tensors["vision_tower.patch.weight"] = {"BF16", {2}, std::string(4, '\0')};
  const TempDir folder;
  set.write(folder.path());
  auto loaded = load(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(loaded->weights.ignored, std::vector<std::string>{"vision_tower.patch.weight"});
  EXPECT_NE(loaded->weights.layout.find("model."), std::string::npos);
}

// Fault 11 for row scales: each part of a packed matrix keeps its own, unique ones.
TEST(Bind, RowScalesFollowTheirRows) {
  TensorSet set = tensors_of("tiny");
  set.config["quantization_config"] = {
      {"quant_method", "ptpc_fp8"},
      {"ignored_layers", {"*mlp*", "*moe*", "*o_proj", "*index_*", "lm_head"}}};
  const std::string a = "model.layers.0.self_attn.";
  float scale = 0.001F;
  for (int i = 0; i < 3; ++i) {
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
      const std::string module = layer("model.", i) + "self_attn." + part;
      StoredTensor& weight = set.tensors.at(module + ".weight");
      weight.dtype = "F8_E4M3";
      weight.bytes.resize(weight.bytes.size() / 2);
      for (std::size_t k = 0; k < weight.bytes.size(); ++k) {
        weight.bytes[k] = static_cast<char>((k * 31 + static_cast<std::size_t>(i)) % 0x70);
      }
      std::vector<float> scales;
      for (std::int64_t row = 0; row < weight.shape[0]; ++row) scales.push_back(scale *= 1.001F);
      set.tensors[module + ".weight_scale"] = {
          "F32", {weight.shape[0]}, testing_files::bytes_of(scales)};
    }
  }
  const TempDir apart, packed;
  set.write(apart.path());
  pack_qkv(set, {"model.", 3, 8}, false);
  set.write(packed.path());
  auto a_loaded = load(apart.path());
  auto b_loaded = load(packed.path());
  ASSERT_TRUE(a_loaded.ok()) << a_loaded.status().to_string();
  ASSERT_TRUE(b_loaded.ok()) << b_loaded.status().to_string();
  const QuantizedMatrix& v = b_loaded->weights.layers[2].v;
  ASSERT_EQ(v.scale.shape, Shape({64}));
  EXPECT_EQ(std::memcmp(v.scale.data, a_loaded->weights.layers[2].v.scale.data, 64 * 4), 0);
  EXPECT_EQ(logits_of(*a_loaded), logits_of(*b_loaded));
}

// Patterns name the unpacked parts; a packed matrix follows them if they agree.
TEST(Bind, PatternsThatNameThePartsOfAPackedMatrix) {
  TensorSet set = tensors_of("mxfp4");
  auto& exclude = set.config["quantization_config"]["exclude"];
  // With the dot, as "*v_proj" would name qkv_proj too.
  exclude = {"lm_head",        "*.q_proj", "*.k_proj",       "*.v_proj",     "*.index_q_proj",
             "*.index_k_proj", "*.o_proj", "*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj"};
  const Names names{"language_model.model.", 3, 12};
  pack_qkv(set, names, true);
  const std::string mlp = layer(names.prefix, 0) + "mlp.";
  set.merge({mlp + "gate_proj", mlp + "up_proj"}, mlp + "gate_up_proj", false);
  {
    const TempDir folder;
    set.write(folder.path());
    auto loaded = load(folder.path());
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
  }
  // v_proj is now to be quantised, q and k not: no packed matrix can be both, even if it is named.
  for (const char* instead : {"nothing", "*.qkv_proj"}) {
    exclude[3] = instead;
    const TempDir folder;
    set.write(folder.path());
    auto loaded = load(folder.path());
    ASSERT_FALSE(loaded.ok()) << instead;
    EXPECT_NE(loaded.status().to_string().find("qkv_proj"), std::string::npos)
        << loaded.status().to_string();
  }
  // With all parts configured alike the packed name alone decides.
  exclude[1] = exclude[2] = exclude[4] = exclude[5] = "nothing";
  const TempDir folder;
  set.write(folder.path());
  auto loaded = load(folder.path());
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
}

// Embeddings and routers are never quantised and need no exclude pattern.
TEST(Bind, EmbeddingAndRouterNeedNoPattern) {
  TensorSet set = tensors_of("mxfp4");
  set.config["quantization_config"]["exclude"] = {"lm_head", "*self_attn*", "*mlp.gate_proj",
                                                  "*mlp.up_proj", "*mlp.down_proj"};
  const TempDir folder;
  set.write(folder.path());
  auto loaded = load(folder.path());
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
}

TEST(Bind, TiedEmbeddings) {
  TensorSet set = tensors_of("tiny");
  set.config["tie_word_embeddings"] = true;
  {
    const TempDir folder;  // a stored head that differs contradicts the config
    set.write(folder.path());
    auto loaded = load(folder.path());
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().to_string().find("lm_head"), std::string::npos);
  }
  set.tensors["lm_head.weight"].bytes = set.tensors["model.embed_tokens.weight"].bytes;
  const TempDir both, one;
  set.write(both.path());
  set.tensors.erase("lm_head.weight");
  set.write(one.path());
  auto a = load(both.path());
  auto b = load(one.path());
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(b->weights.lm_head.weight.data, b->weights.embed.weight.data);
  EXPECT_EQ(logits_of(*a), logits_of(*b));
}

struct Broken {
  const char* name;
  std::function<void(TensorSet&)> change;
  std::vector<std::string> mentions;
};

TEST(Bind, RefusesWhatDoesNotFit) {
  const std::string l1 = "model.layers.1.";
  const std::vector<Broken> list = {
      {"missing and unexpected, five of each",
       [&](TensorSet& set) {
         for (int e = 0; e < 8; ++e) {
           set.rename(expert(l1 + "block_sparse_moe.", e) + "w1.weight",
                      expert(l1 + "block_sparse_moe.", e) + "w9.weight");
         }
       },
       {"8 ", "experts.0.w1.weight", "experts.4.w1.weight", "experts.0.w9.weight", "stacked"}},
      {"a norm missing",
       [&](TensorSet& set) { set.take(l1 + "self_attn.q_norm.weight"); },
       {"1 ", l1 + "self_attn.q_norm.weight"}},
      {"a layer too many",
       [&](TensorSet& set) {
         set.tensors["model.layers.3.input_layernorm.weight"] = {
             "BF16", {128}, std::string(256, '\0')};
       },
       {"1 ", "model.layers.3.input_layernorm.weight"}},
      {"an attention bias",
       [&](TensorSet& set) {
         set.tensors[l1 + "self_attn.q_proj.bias"] = {"BF16", {128}, std::string(256, '\0')};
       },
       {"q_proj.bias"}},
      {"index weights on a dense layer",
       [&](TensorSet& set) {
         set.tensors["model.layers.0.self_attn.index_k_proj.weight"] =
             set.tensors[l1 + "self_attn.index_k_proj.weight"];
       },
       {"model.layers.0.self_attn.index_k_proj.weight"}},
      {"wrong rows",
       [&](TensorSet& set) { set.config["vocab_size"] = 128; },
       {"embed_tokens", "128"}},
      {"a norm as F32",
       [&](TensorSet& set) {
         set.tensors["model.norm.weight"] = {"F32", {128}, std::string(512, '\0')};
       },
       {"model.norm.weight", "F32"}},
      {"another model",
       [&](TensorSet& set) { set.rename_all("model.", "transformer."); },
       {"missing", "unexpected"}},
      {"two heads",
       [&](TensorSet& set) {
         set.tensors["language_model.lm_head.weight"] = set.tensors["lm_head.weight"];
       },
       {"language_model.lm_head.weight"}},
      {"a stack in the other orientation",
       [&](TensorSet& set) {
         stack_packed(set, {"model.", 3, 8}, 8);
         auto& down = set.tensors[l1 + "block_sparse_moe.experts.down_proj"];
         std::swap(down.shape[1], down.shape[2]);
       },
       {"experts.down_proj", "64", "128"}},
      {"a stack short of one expert",
       [&](TensorSet& set) {
         for (int i = 1; i < 3; ++i) {
           for (const char* w : {"w1", "w2", "w3"})
             set.take(expert("model.layers." + std::to_string(i) + ".block_sparse_moe.", 7) + w +
                      ".weight");
         }
         stack_packed(set, {"model.", 3, 7}, 7);
       },
       {"experts.gate_up_proj"}},
      {"a quantised router",
       [&](TensorSet& set) {
         set.tensors[l1 + "block_sparse_moe.gate.weight"] = {
             "F8_E4M3", {8, 128}, std::string(1024, '\1')};
         set.tensors[l1 + "block_sparse_moe.gate.weight_scale"] = {
             "F32", {8}, std::string(32, '\0')};
       },
       {"block_sparse_moe.gate"}},
  };
  for (const Broken& broken : list) {
    SCOPED_TRACE(broken.name);
    TensorSet set = tensors_of("tiny");
    broken.change(set);
    const TempDir folder;
    set.write(folder.path());
    auto loaded = load(folder.path());
    ASSERT_FALSE(loaded.ok());
    const std::string text = loaded.status().to_string();
    EXPECT_EQ(loaded.status().code(), Code::kInvalidFile) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
    for (const std::string& mention : broken.mentions) {
      EXPECT_NE(text.find(mention), std::string::npos) << mention << " in: " << text;
    }
    EXPECT_EQ(text.find("experts.5.w9"), std::string::npos) << "at most five names: " << text;
  }
}

TEST(Bind, RefusesBadScales) {
  const std::string scale =
      "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight_scale";
  TensorSet missing = tensors_of("mxfp4");
  missing.take(scale);
  TensorSet nan = tensors_of("mxfp4");
  nan.tensors[scale].bytes[5] = '\xff';
  for (const TensorSet* set : {&missing, &nan}) {
    const TempDir folder;
    set->write(folder.path());
    auto loaded = load(folder.path());
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().to_string().find("experts.3.w2"), std::string::npos)
        << loaded.status().to_string();
  }
}

}  // namespace
}  // namespace monolayer::m3
