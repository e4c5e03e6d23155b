// The values a template computes with: Python's None, bool, int, float, str, list, tuple and dict
// as far as templates see them, plus "undefined" and template objects (macros, namespaces, ...).
//
// Strings, lists and dicts are immutable and shared, so a value holds no cycle; a list knows its
// nesting depth, which is bounded when it is made, so nothing that walks a value can overflow the
// stack. Mutable things (Object) belong to the render that made them.
//
// Every string carries marks: the byte ranges that came from outside the template ("untrusted").
// Text that a template writes literally is trusted. See segments in template.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/runtime.h"

namespace monolayer::jinja {

// What values are made of; returns its bytes to the meter it was charged to.
struct Heap {
  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  virtual ~Heap() {
    if (meter != nullptr) meter->release(charged);
  }
  Meter* meter = nullptr;
  std::size_t charged = 0;
};

// Untrusted bytes [begin, end) of a string: ascending, neither overlapping nor touching.
struct Mark {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const Mark&) const = default;
};
using Marks = std::vector<Mark>;

struct StringData : Heap {
  std::string bytes;  // valid UTF-8
  Marks marks;
  std::size_t code_points = 0;
  bool markup = false;  // result of the filters safe and escape
  bool ascii() const { return code_points == bytes.size(); }
};

enum class Kind : std::uint8_t {
  kMissing,    // a variable not set yet; never visible to templates
  kUndefined,  // payload: the message of the error raised when it is used
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer beyond 64 bits, as its decimal digits: printed, compared, not computed
            // with
  kFloat,
  kString,
  kList,
  kDict,
  kObject,
};

struct ListData;
struct DictData;
struct Object;

class Value {
 public:
  Value() = default;  // None
  static Value missing() { return Value(Kind::kMissing); }
  static Value undefined(std::string message);
  static Value boolean(bool b);
  static Value integer(std::int64_t i);
  static Value real(double d);
  static Value big_integer(std::string digits);
  // Text with no meter: literals, and what the caller passes in. `bytes` must be UTF-8.
  static Value literal(std::string bytes);
  static Value untrusted(std::string bytes);
  static Value string(std::shared_ptr<const StringData> data);
  static Value list(std::shared_ptr<const ListData> data);
  static Value dict(std::shared_ptr<const DictData> data);
  static Value object(Object* object);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const {
    return kind_ == Kind::kBool || kind_ == Kind::kInt || kind_ == Kind::kFloat;
  }
  bool is_integer() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }

  // Each only for its kind; as_int also for kBool, as_real for every is_number().
  bool as_bool() const { return int_ != 0; }
  std::int64_t as_int() const { return int_; }
  double as_real() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(int_); }
  const StringData& str() const { return static_cast<const StringData&>(*heap_); }  // NOLINT
  const std::string& message() const { return str().bytes; }
  const std::string& digits() const { return str().bytes; }
  const ListData& list() const;
  const DictData& dict() const;
  Object* object() const { return object_; }
  const Heap* identity() const { return heap_.get(); }
  // Nesting of lists and dicts: 0 for anything else.
  int depth() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kNone;
  union {
    std::int64_t int_ = 0;
    double real_;
    Object* object_;
  };
  std::shared_ptr<const Heap> heap_;
};

// Python's sequence and view types differ in how they print, index and compare.
enum class Flavor : std::uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems };

struct ListData : Heap {
  std::vector<Value> items;
  Flavor flavor = Flavor::kList;
  bool untrusted = false;  // given by the caller
  int depth = 1;
  std::int64_t start = 0, stop = 0, step = 1;  // kRange
};

struct DictData : Heap {
  std::vector<std::pair<Value, Value>> entries;  // in insertion order, keys distinct
  std::vector<std::uint32_t> order;              // entries by ascending key, for long dicts
  bool untrusted = false;
  int depth = 1;

  // nullptr if there is none. `key` must be hashable.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

// Template objects. The evaluator owns them; values only point to them.
enum class ObjectType : std::uint8_t {
  kNamespace,
  kMacro,
  kLoop,
  kGenerator,
  kMethod,
  kFunction,
  kCycler,
  kJoiner,
};

struct Object {
  explicit Object(ObjectType object_type) : type(object_type) {}
  virtual ~Object() = default;
  ObjectType type;
};

// Collects distinct keys; as in Python a repeated key keeps its first place and its last value.
class DictBuilder {
 public:
  // A null runtime makes values without meter.
  explicit DictBuilder(Runtime* rt) : rt_(rt) {}
  ~DictBuilder();
  DictBuilder(const DictBuilder&) = delete;
  DictBuilder& operator=(const DictBuilder&) = delete;
  // Fails if the key is not hashable.
  void add(Value key, Value value);
  Value finish(bool untrusted = false);

 private:
  Runtime* rt_;
  std::size_t charged_ = 0;
  std::vector<std::pair<Value, Value>> entries_;
};

class ListBuilder {
 public:
  explicit ListBuilder(Runtime* rt) : rt_(rt) {}
  ~ListBuilder();
  ListBuilder(const ListBuilder&) = delete;
  ListBuilder& operator=(const ListBuilder&) = delete;
  void add(Value value);
  std::vector<Value>& items() { return items_; }
  Value finish(Flavor flavor = Flavor::kList, bool untrusted = false);

 private:
  Runtime* rt_;
  std::size_t charged_ = 0;
  std::vector<Value> items_;
};

// Python's type name: "str", "NoneType", ...
std::string_view type_name(const Value& value);
bool hashable(const Value& value);
// A total order of hashable values, equal exactly where Python's == is (1 == 1.0 == True).
int compare_keys(const Value& a, const Value& b);
// Exact, whatever mixture of integers and floats; 2 if a NaN is involved.
int compare_numbers(const Value& a, const Value& b);

}  // namespace monolayer::jinja
