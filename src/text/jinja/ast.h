// The syntax tree of a template. Every node records its line; name nodes are bound to variable
// slots by resolve.h before anything is evaluated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja/value.h"

namespace monolayer::jinja {

// A variable: slot `index` of the frame `hops` frames out from the current one.
struct Slot {
  int hops = 0;
  int index = -1;
};

// How a frame's variable gets its value when the frame is entered.
struct Load {
  enum class From : std::uint8_t {
    kNothing,    // starts unset
    kParameter,  // set by whoever enters the frame
    kContext,    // looked up by name among the caller's variables and the globals
    kOuter,      // copied from a variable of an outer frame
  };
  From from = From::kNothing;
  std::string name;
  Slot outer;  // as seen from this frame
};

struct FrameLayout {
  std::vector<Load> slots;
};

enum class ExprKind : std::uint8_t {
  kConstant,
  kName,
  kAttrTarget,  // ns.attribute on the left of a set
  kList,
  kTuple,
  kDict,  // args: key, value, key, value, ...
  kNegative,
  kPositive,
  kNot,
  kAnd,
  kOr,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kConcat,
  kCompare,      // args[0] ops[0] args[1] ops[1] args[2] ...
  kConditional,  // test, value, alternative (may be absent)
  kAttribute,
  kItem,
  kSlice,   // object, start, stop, step (each bound may be null)
  kCall,    // args[0] is called
  kFilter,  // args[0] may be null: the captured body of a block
  kTest,
};

enum class CompareOp : std::uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Keyword {
  std::string name;
  ExprPtr value;
};

struct FilterEntry;
struct TestEntry;

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  bool store = false;  // kName: assigned to rather than read
  int line = 0;
  int height = 1;    // of the tree below
  std::string name;  // variable, attribute, filter or test
  Value constant;
  Slot slot;
  std::vector<ExprPtr> args;
  std::vector<CompareOp> ops;
  std::vector<Keyword> keywords;
  ExprPtr star, star_star;  // f(*star, **star_star)
  const FilterEntry* filter = nullptr;
  const TestEntry* test = nullptr;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : std::uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr test;
  Body body;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: none
  int slot = -1;
  int line = 0;
};

// A macro or the body of a call block.
struct MacroDef {
  std::string name;
  std::vector<Parameter> parameters;
  bool explicit_caller = false;                               // "caller" is among the parameters
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;  // if the body reads them
  FrameLayout frame;
  Body body;
};

struct Stmt {
  StmtKind kind = StmtKind::kOutput;
  int line = 0;
  int height = 1;
  std::vector<ExprPtr> items;       // kOutput; kWith: values
  std::vector<Branch> branches;     // kIf: if and elifs
  Body body;                        // kFor, kSetBlock, kFilterBlock, kWith
  Body alternative;                 // kIf, kFor: else
  ExprPtr target;                   // kSet, kSetBlock, kFor
  std::vector<ExprPtr> targets;     // kWith
  ExprPtr value;                    // kSet: value; kFor: iterable; kCallBlock: call; kFilterBlock,
                                    // kSetBlock: filter (kSetBlock: may be null)
  ExprPtr condition;                // kFor: if
  bool recursive = false;           // kFor
  std::unique_ptr<MacroDef> macro;  // kMacro, kCallBlock
  Slot slot;                        // kMacro: variable
  int loop_slot = -1;               // kFor: variable "loop" of the body's frame, if it is read
  FrameLayout frame;                // kFor, kSetBlock, kFilterBlock, kWith
  FrameLayout condition_frame, alternative_frame;  // kFor
};

}  // namespace monolayer::jinja
