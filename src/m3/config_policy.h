// What to do with configuration fields that no part of the parser reads.
#pragma once

#include "m3/field_reader.h"

namespace monolayer::m3 {

// Marks the fields that say nothing about the arithmetic of inference (training settings, what
// transformers adds on saving, the vision half), so that they pass silently.
void know_harmless_fields(FieldReader& fields);

// Of the fields still unknown: one whose name speaks of arithmetic this model does not have (a
// bias, a scaling, a window, a cap, a sink, a norm, ...) is refused unless its value switches it
// off; any other is noted once.
void judge_unknown_fields(FieldReader& fields);

}  // namespace monolayer::m3
