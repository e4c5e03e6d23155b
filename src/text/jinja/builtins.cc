#include "text/jinja/builtins.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "text/jinja/format.h"
#include "text/jinja/operators.h"

namespace monolayer::jinja {

namespace {

constexpr std::int64_t kLongestRange = 100'000;  // as Jinja's sandbox

Value global_range(Evaluator& e, CallArgs& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) {
    fail("range takes one to three integers");
  }
  std::array<std::int64_t, 3> values{0, 0, 1};
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    const Value& value = args.positional[i];
    require_defined(value);
    if (!value.is_integer()) {
      fail(cat({"'", type_name(value), "' object cannot be interpreted as an integer"}));
    }
    values[args.positional.size() == 1 ? 1 : i] = value.as_int();
  }
  const auto [start, stop, step] = values;
  if (step == 0) fail("range() arg 3 must not be zero");
  // In unsigned arithmetic the distance between any two integers fits.
  const bool up = step > 0;
  std::uint64_t count = 0;
  if (up ? start < stop : start > stop) {
    const std::uint64_t distance =
        up ? static_cast<std::uint64_t>(stop) - static_cast<std::uint64_t>(start)
           : static_cast<std::uint64_t>(start) - static_cast<std::uint64_t>(stop);
    const std::uint64_t stride =
        up ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
    count = (distance - 1) / stride + 1;
  }
  if (count > static_cast<std::uint64_t>(kLongestRange)) {
    fail_limit(cat(
        {"range of ", std::to_string(count), " items: at most ", std::to_string(kLongestRange)}));
  }
  ListBuilder items(&e.rt);
  for (std::uint64_t i = 0; i < count; ++i) {
    items.add(Value::integer(static_cast<std::int64_t>(static_cast<std::uint64_t>(start) +
                                                       i * static_cast<std::uint64_t>(step))));
  }
  auto data = std::make_shared<ListData>();
  // The builder's charge ends with it; the range carries one of its own.
  e.rt.meter.charge(sizeof(ListData) + count * sizeof(Value));
  data->meter = &e.rt.meter;
  data->charged = sizeof(ListData) + count * sizeof(Value);
  data->items = std::move(items.items());
  data->flavor = Flavor::kRange;
  data->start = start;
  data->stop = stop;
  data->step = step;
  return Value::list(std::move(data));
}

// The pairs dict(...) collects: of a mapping or of an iterable of pairs, then keywords.
void collect_pairs(Evaluator& e, CallArgs& args, DictBuilder& out) {
  if (args.positional.size() > 1) fail("dict expected at most 1 argument");
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.dict().entries) out.add(key, value);
    } else {
      Cursor pairs(e.rt, source);
      Value pair;
      while (pairs.next(&pair)) {
        Cursor parts(e.rt, pair);
        Value key, value, extra;
        if (!parts.next(&key) || !parts.next(&value) || parts.next(&extra)) {
          fail("dictionary update sequence element must have length 2");
        }
        out.add(std::move(key), std::move(value));
      }
    }
  }
  for (auto& [name, value] : args.named) out.add(make_string(e.rt, name), std::move(value));
}

Value global_dict(Evaluator& e, CallArgs& args) {
  DictBuilder out(&e.rt);
  collect_pairs(e, args, out);
  return out.finish();
}

Value global_namespace(Evaluator& e, CallArgs& args) {
  DictBuilder pairs(&e.rt);
  collect_pairs(e, args, pairs);
  const Value dict = pairs.finish();
  auto* space = e.make<Namespace>();
  for (const auto& [key, value] : dict.dict().entries) {
    if (!key.is(Kind::kString)) fail_unsupported("namespace attributes that are not strings");
    e.rt.meter.charge(2 * sizeof(Value));
    space->attributes.emplace_back(key, value);
  }
  return Value::object(space);
}

Value global_raise_exception(Evaluator& e, CallArgs& args) {
  const Bound bound("raise_exception", args, {"message"}, 1);
  fail(to_string(e.rt, bound[0]).str().bytes);
}

Value global_strftime_now(Evaluator& e, CallArgs& args) {
  const Bound bound("strftime_now", args, {"format"}, 1);
  const StringData* format = bound.text(0);
  if (format == nullptr) fail("strftime_now takes a format string");
  if (format->bytes.size() > 256) fail_limit("a date format longer than 256 bytes");
  std::tm now{};
  if (e.now()) {
    now = *e.now();
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  // A leading character tells an empty result from one that did not fit.
  std::array<char, 16384> buffer{};
  const std::string pattern = "." + format->bytes;
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), pattern.c_str(), &now);
  if (size == 0) fail_limit("a formatted date longer than 16384 bytes");
  return make_string(e.rt, std::string_view(buffer.data() + 1, size - 1), !format->marks.empty());
}

Value global_cycler(Evaluator& e, CallArgs& args) {
  if (args.positional.empty() || !args.named.empty()) fail("cycler takes at least one item");
  e.rt.meter.charge(args.positional.size() * sizeof(Value));
  return Value::object(e.make<Cycler>(std::move(args.positional)));
}

Value global_joiner(Evaluator& e, CallArgs& args) {
  const Bound bound("joiner", args, {"sep"});
  return Value::object(e.make<Joiner>(bound.has(0) ? bound[0] : Value::literal(", ")));
}

}  // namespace

Value find_global(std::string_view name) {
  static Function functions[] = {
      {"range", global_range},
      {"dict", global_dict},
      {"namespace", global_namespace},
      {"raise_exception", global_raise_exception},
      {"strftime_now", global_strftime_now},
      {"cycler", global_cycler},
      {"joiner", global_joiner},
  };
  for (Function& function : functions) {
    if (function.name == name) return Value::object(&function);
  }
  return Value::missing();
}

const FilterEntry* find_filter(std::string_view name) {
  for (const FilterTable table :
       {text_filters(), sequence_filters(), selection_filters(), number_filters()}) {
    for (const FilterEntry* entry = table.begin; entry != table.end; ++entry) {
      if (entry->name == name) return entry;
    }
  }
  return nullptr;
}

Bound::Bound(std::string_view function, CallArgs& args,
             std::initializer_list<std::string_view> names, std::size_t required)
    : function_(function), values_(names.size(), Value::missing()) {
  const auto complain = [&](const std::string& what) { fail(cat({function, " ", what})); };
  if (args.positional.size() > names.size()) {
    complain(cat({"takes at most ", std::to_string(names.size()), " argument(s), got ",
                  std::to_string(args.positional.size())}));
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (auto& [name, value] : args.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) complain(cat({"got an unexpected keyword argument '", name, "'"}));
    Value& slot = values_[static_cast<std::size_t>(place - names.begin())];
    if (!slot.is(Kind::kMissing)) complain(cat({"got multiple values for argument '", name, "'"}));
    slot = std::move(value);
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!has(i)) complain(cat({"is missing argument '", names.begin()[i], "'"}));
  }
}

bool Bound::truth(std::size_t i, bool fallback) const {
  return has(i) ? jinja::truth(values_[i]) : fallback;
}

std::int64_t Bound::integer(std::size_t i, std::int64_t fallback) const {
  if (!has(i) || values_[i].is(Kind::kNone)) return fallback;
  require_defined(values_[i]);
  if (!values_[i].is_integer()) {
    fail(cat({function_, " takes an integer, not ", type_name(values_[i])}));
  }
  return values_[i].as_int();
}

const StringData* Bound::text(std::size_t i) const {
  if (!has(i) || values_[i].is(Kind::kNone)) return nullptr;
  require_defined(values_[i]);
  if (!values_[i].is(Kind::kString)) {
    fail(cat({function_, " takes a string, not ", type_name(values_[i])}));
  }
  return &values_[i].str();
}

}  // namespace monolayer::jinja
