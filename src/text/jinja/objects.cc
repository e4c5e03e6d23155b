#include "text/jinja/objects.h"

#include <utility>

#include "text/jinja/text.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

Generator* as_generator(const Value& value) {
  if (!value.is(Kind::kObject) || value.object()->type != ObjectType::kGenerator) return nullptr;
  return static_cast<Generator*>(value.object());
}

}  // namespace

Value* Namespace::find(std::string_view name) {
  for (auto& [key, value] : attributes) {
    if (key.str().bytes == name) return &value;
  }
  return nullptr;
}

bool iterable(const Value& value) {
  return value.is(Kind::kList) || value.is(Kind::kString) || value.is(Kind::kDict) ||
         value.is(Kind::kUndefined) || as_generator(value) != nullptr;
}

Cursor::Cursor(Runtime& rt, Value iterable_value) : rt_(rt), iterable_(std::move(iterable_value)) {
  if (!iterable(iterable_)) {
    fail(cat({"'", type_name(iterable_), "' object is not iterable"}));
  }
}

bool Cursor::next(Value* item) {
  rt_.step();
  switch (iterable_.kind()) {
    case Kind::kList: {
      const auto& items = iterable_.list().items;
      if (at_ >= items.size()) return false;
      *item = items[at_++];
      return true;
    }
    case Kind::kDict: {
      const auto& entries = iterable_.dict().entries;
      if (at_ >= entries.size()) return false;
      *item = entries[at_++].first;
      return true;
    }
    case Kind::kString: {
      const std::string& bytes = iterable_.str().bytes;
      if (at_ >= bytes.size()) return false;
      const std::size_t size = utf8::decode(bytes, at_).size;
      *item = substring(rt_, iterable_, at_, at_ + size);
      at_ += size;
      return true;
    }
    case Kind::kObject: {
      Generator& generator = *as_generator(iterable_);
      const auto& items = generator.list.list().items;
      if (generator.next >= items.size()) {
        // A failed Python generator is over once its error was raised.
        if (generator.failure) throw *std::exchange(generator.failure, std::nullopt);
        return false;
      }
      *item = items[generator.next++];
      return true;
    }
    default:
      return false;
  }
}

std::int64_t Cursor::length() const {
  switch (iterable_.kind()) {
    case Kind::kList:
      return static_cast<std::int64_t>(iterable_.list().items.size());
    case Kind::kDict:
      return static_cast<std::int64_t>(iterable_.dict().entries.size());
    case Kind::kString:
      return static_cast<std::int64_t>(iterable_.str().code_points);
    case Kind::kUndefined:
      return 0;
    default:
      return -1;
  }
}

}  // namespace monolayer::jinja
