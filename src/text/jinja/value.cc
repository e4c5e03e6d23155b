#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

constexpr std::size_t kLinearSearch = 8;  // entries up to which a dict has no order

std::shared_ptr<StringData> make_data(std::string bytes) {
  auto data = std::make_shared<StringData>();
  data->bytes = std::move(bytes);
  data->code_points = utf8::count(data->bytes);
  return data;
}

int three_way(std::string_view a, std::string_view b) {
  const int order = a.compare(b);
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

int key_class(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return 0;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return 1;
    case Kind::kBigInt:
      return 2;
    case Kind::kString:
      return 3;
    case Kind::kList:
      return 4;
    case Kind::kUndefined:
      return 5;
    default:
      return 6;
  }
}

int compare_int_real(std::int64_t i, double d) {
  if (std::isnan(d)) return 2;
  if (d >= 9223372036854775808.0) return -1;
  if (d < -9223372036854775808.0) return 1;
  const double whole = std::trunc(d);
  const auto whole_int = static_cast<std::int64_t>(whole);
  if (i != whole_int) return i < whole_int ? -1 : 1;
  return whole < d ? -1 : whole > d ? 1 : 0;
}

}  // namespace

Value Value::undefined(std::string message) {
  Value value(Kind::kUndefined);
  value.heap_ = make_data(std::move(message));
  return value;
}

Value Value::boolean(bool b) {
  Value value(Kind::kBool);
  value.int_ = b ? 1 : 0;
  return value;
}

Value Value::integer(std::int64_t i) {
  Value value(Kind::kInt);
  value.int_ = i;
  return value;
}

Value Value::real(double d) {
  Value value(Kind::kFloat);
  value.real_ = d;
  return value;
}

Value Value::big_integer(std::string digits) {
  Value value(Kind::kBigInt);
  value.heap_ = make_data(std::move(digits));
  return value;
}

Value Value::literal(std::string bytes) { return string(make_data(std::move(bytes))); }

Value Value::untrusted(std::string bytes) {
  auto data = make_data(std::move(bytes));
  if (!data->bytes.empty()) data->marks = {{0, data->bytes.size()}};
  return string(std::move(data));
}

Value Value::string(std::shared_ptr<const StringData> data) {
  Value value(Kind::kString);
  value.heap_ = std::move(data);
  return value;
}

Value Value::list(std::shared_ptr<const ListData> data) {
  Value value(Kind::kList);
  value.heap_ = std::move(data);
  return value;
}

Value Value::dict(std::shared_ptr<const DictData> data) {
  Value value(Kind::kDict);
  value.heap_ = std::move(data);
  return value;
}

Value Value::object(Object* object) {
  Value value(Kind::kObject);
  value.object_ = object;
  return value;
}

const ListData& Value::list() const {
  return static_cast<const ListData&>(*heap_);  // NOLINT
}

const DictData& Value::dict() const {
  return static_cast<const DictData&>(*heap_);  // NOLINT
}

int Value::depth() const {
  if (kind_ == Kind::kList) return list().depth;
  if (kind_ == Kind::kDict) return dict().depth;
  return 0;
}

int compare_numbers(const Value& a, const Value& b) {
  const bool a_real = a.is(Kind::kFloat);
  const bool b_real = b.is(Kind::kFloat);
  if (!a_real && !b_real) {
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  }
  if (a_real && b_real) {
    const double x = a.as_real();
    const double y = b.as_real();
    if (std::isnan(x) || std::isnan(y)) return 2;
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (b_real) return compare_int_real(a.as_int(), b.as_real());
  const int order = compare_int_real(b.as_int(), a.as_real());
  return order == 2 ? 2 : -order;
}

bool hashable(const Value& value) {
  if (value.is(Kind::kDict)) return false;
  if (!value.is(Kind::kList)) return true;
  const ListData& list = value.list();
  if (list.flavor == Flavor::kRange) return true;
  if (list.flavor != Flavor::kTuple) return false;
  return std::all_of(list.items.begin(), list.items.end(), hashable);
}

int compare_keys(const Value& a, const Value& b) {
  const int class_a = key_class(a);
  const int class_b = key_class(b);
  if (class_a != class_b) return class_a < class_b ? -1 : 1;
  switch (class_a) {
    case 1: {
      const int order = compare_numbers(a, b);
      if (order != 2) return order;
      const bool nan_a = std::isnan(a.as_real());
      const bool nan_b = std::isnan(b.as_real());
      return nan_a == nan_b ? 0 : nan_a ? 1 : -1;
    }
    case 2:
      return three_way(a.digits(), b.digits());
    case 3:
      return three_way(a.str().bytes, b.str().bytes);
    case 4: {
      const ListData& x = a.list();
      const ListData& y = b.list();
      if (x.flavor != y.flavor) return x.flavor < y.flavor ? -1 : 1;
      const std::size_t common = std::min(x.items.size(), y.items.size());
      for (std::size_t i = 0; i < common; ++i) {
        if (const int order = compare_keys(x.items[i], y.items[i]); order != 0) return order;
      }
      return x.items.size() < y.items.size() ? -1 : x.items.size() > y.items.size() ? 1 : 0;
    }
    case 6:
      return a.object() < b.object() ? -1 : a.object() > b.object() ? 1 : 0;
    default:
      return 0;
  }
}

const Value* DictData::find(const Value& key) const {
  if (order.empty()) {
    for (const auto& [name, value] : entries) {
      if (compare_keys(name, key) == 0) return &value;
    }
    return nullptr;
  }
  const auto place = std::lower_bound(
      order.begin(), order.end(), key,
      [&](std::uint32_t i, const Value& k) { return compare_keys(entries[i].first, k) < 0; });
  if (place == order.end() || compare_keys(entries[*place].first, key) != 0) return nullptr;
  return &entries[*place].second;
}

const Value* DictData::find(std::string_view key) const {
  const auto less = [&](std::uint32_t i, std::string_view k) {
    const Value& name = entries[i].first;
    return name.is(Kind::kString) ? std::string_view(name.str().bytes) < k : key_class(name) < 3;
  };
  if (order.empty()) {
    for (const auto& [name, value] : entries) {
      if (name.is(Kind::kString) && name.str().bytes == key) return &value;
    }
    return nullptr;
  }
  const auto place = std::lower_bound(order.begin(), order.end(), key, less);
  if (place == order.end()) return nullptr;
  const auto& [name, value] = entries[*place];
  return name.is(Kind::kString) && name.str().bytes == key ? &value : nullptr;
}

DictBuilder::~DictBuilder() {
  if (rt_ != nullptr) rt_->meter.release(charged_);
}

void DictBuilder::add(Value key, Value value) {
  if (!hashable(key)) fail(cat({"unhashable type: '", type_name(key), "'"}));
  if (rt_ != nullptr) {
    constexpr std::size_t kEntry = sizeof(entries_[0]) * 2;
    rt_->step();
    rt_->meter.charge(kEntry);
    charged_ += kEntry;
  }
  entries_.emplace_back(std::move(key), std::move(value));
}

Value DictBuilder::finish(bool untrusted) {
  auto data = std::make_shared<DictData>();
  std::vector<std::uint32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return compare_keys(entries_[a].first, entries_[b].first) < 0;
  });
  // A run of equal keys becomes its first entry with its last value.
  std::vector<bool> dropped(entries_.size(), false);
  for (std::size_t i = 0; i < order.size();) {
    std::size_t j = i + 1;
    while (j < order.size() &&
           compare_keys(entries_[order[i]].first, entries_[order[j]].first) == 0) {
      dropped[order[j++]] = true;
    }
    if (j > i + 1) entries_[order[i]].second = std::move(entries_[order[j - 1]].second);
    i = j;
  }
  std::vector<std::uint32_t> moved_to(entries_.size());
  data->entries.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (dropped[i]) continue;
    moved_to[i] = static_cast<std::uint32_t>(data->entries.size());
    data->depth = std::max(data->depth, 1 + entries_[i].second.depth());
    data->depth = std::max(data->depth, 1 + entries_[i].first.depth());
    data->entries.push_back(std::move(entries_[i]));
  }
  if (data->entries.size() > kLinearSearch) {
    for (const std::uint32_t i : order) {
      if (!dropped[i]) data->order.push_back(moved_to[i]);
    }
  }
  entries_.clear();
  data->untrusted = untrusted;
  if (rt_ != nullptr) {
    if (data->depth > rt_->limits.value_depth) {
      fail_limit(cat({"value nests deeper than ", std::to_string(rt_->limits.value_depth)}));
    }
    rt_->meter.charge(sizeof(DictData));
    data->meter = &rt_->meter;
    data->charged = charged_ + sizeof(DictData);
    charged_ = 0;
  }
  return Value::dict(std::move(data));
}

ListBuilder::~ListBuilder() {
  if (rt_ != nullptr) rt_->meter.release(charged_);
}

void ListBuilder::add(Value value) {
  if (rt_ != nullptr) {
    rt_->step();
    rt_->meter.charge(sizeof(Value) * 2);
    charged_ += sizeof(Value) * 2;
  }
  items_.push_back(std::move(value));
}

Value ListBuilder::finish(Flavor flavor, bool untrusted) {
  auto data = std::make_shared<ListData>();
  data->items = std::move(items_);
  data->flavor = flavor;
  data->untrusted = untrusted;
  for (const Value& item : data->items) data->depth = std::max(data->depth, 1 + item.depth());
  if (rt_ != nullptr) {
    if (data->depth > rt_->limits.value_depth) {
      fail_limit(cat({"value nests deeper than ", std::to_string(rt_->limits.value_depth)}));
    }
    rt_->meter.charge(sizeof(ListData));
    data->meter = &rt_->meter;
    data->charged = charged_ + sizeof(ListData);
    charged_ = 0;
  }
  return Value::list(std::move(data));
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kList:
      switch (value.list().flavor) {
        case Flavor::kList:
          return "list";
        case Flavor::kTuple:
          return "tuple";
        case Flavor::kRange:
          return "range";
        case Flavor::kKeys:
          return "dict_keys";
        case Flavor::kValues:
          return "dict_values";
        case Flavor::kItems:
          return "dict_items";
      }
      return "list";
    case Kind::kObject:
      switch (value.object()->type) {
        case ObjectType::kNamespace:
          return "Namespace";
        case ObjectType::kMacro:
          return "Macro";
        case ObjectType::kLoop:
          return "LoopContext";
        case ObjectType::kGenerator:
          return "generator";
        case ObjectType::kMethod:
          return "builtin_function_or_method";
        case ObjectType::kFunction:
          return "function";
        case ObjectType::kCycler:
          return "Cycler";
        case ObjectType::kJoiner:
          return "Joiner";
      }
  }
  return "object";
}

}  // namespace monolayer::jinja
