// The parts of a configuration that take more than a few lines to read.
#pragma once

#include "m3/config.h"
#include "m3/field_reader.h"

namespace monolayer::m3 {

// rotary_dim, partial_rotary_factor, rope_theta, in the text object or in rope_parameters; any
// rope scaling is refused. Needs head_dim.
void read_rotary(FieldReader& text, ModelConfig& config);

// Fills config.layers from moe_layer_freq or mlp_layer_types, and from sparse_attention_freq or
// layer_types; where both forms are given they must agree. Needs num_layers.
void read_layers(FieldReader& text, ModelConfig& config);

// Widths, experts and routing. Needs the layers.
void read_moe(FieldReader& text, ModelConfig& config);

// The index branch: sparse_attention_config, or the index_* fields. Needs the layers.
void read_sparse_attention(FieldReader& text, ModelConfig& config);

// Sharing one layer's selection with later layers is an approximation other engines offer.
void refuse_index_sharing(FieldReader& fields);

}  // namespace monolayer::m3
