// Python's operators on values. Failures carry Python's wording where templates' authors know it.
#pragma once

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace monolayer::jinja {

// bool(value).
bool truth(const Value& value);
// a == b, deep.
bool equal(Runtime& rt, const Value& a, const Value& b);
// a op b for the four orderings; fails for kinds without order.
bool ordered(Runtime& rt, CompareOp op, const Value& a, const Value& b);
// item in container.
bool contains(Runtime& rt, const Value& container, const Value& item);
bool compare(Runtime& rt, CompareOp op, const Value& a, const Value& b);
// kAdd .. kPow.
Value arithmetic(Runtime& rt, ExprKind op, const Value& a, const Value& b);
Value negative(const Value& value);
Value positive(const Value& value);
// Raises the error an undefined value carries; does nothing for others.
void require_defined(const Value& value);

}  // namespace monolayer::jinja
