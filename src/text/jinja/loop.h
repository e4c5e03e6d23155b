// The state of a running loop, and what the variable `loop` refers to.
#pragma once

#include <optional>
#include <vector>

#include "text/jinja/objects.h"

namespace monolayer::jinja {

struct LoopState : Object {
  LoopState() : Object(ObjectType::kLoop) {}

  const Stmt* stmt = nullptr;
  Frame* frame = nullptr;      // that the loop stands in
  Frame* condition = nullptr;  // of the loop's own `if`
  std::optional<Cursor> cursor;
  std::vector<Value> rest;  // items already drawn from the cursor to count them, from rest_at on
  std::size_t rest_at = 0;
  bool drained = false;
  Value after = Value::missing();  // the next item, if it was looked at
  Value current = Value::missing();
  Value before = Value::missing();
  Value changed = Value::missing();  // last arguments of loop.changed
  std::int64_t index0 = -1;
  std::int64_t length = -1;
  int depth0 = 0;
  bool escaped = false;  // something other than an attribute access refers to it

  // Lets go of every value, for the next loop.
  void reset() {
    cursor.reset();
    rest.clear();
    rest_at = 0;
    drained = false;
    after = current = before = changed = Value::missing();
    index0 = -1;
    length = -1;
  }
};

}  // namespace monolayer::jinja
