// The fast variants. Highway includes this file once per instruction set; those without a fused
// multiply-add are left empty, because they could not compute the same bits.
#include "backend/cpu/tiles_variants.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/tiles_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
#include "backend/cpu/tiles_matmul-inl.h"
#include "backend/cpu/tiles_rows-inl.h"
#include "backend/cpu/tiles_split-inl.h"

#if HWY_TARGET == HWY_AVX2
#define MONOLAYER_TILES kAvx2Tiles
#define MONOLAYER_TILES_NAME "avx2"
#elif HWY_TARGET == HWY_AVX3
#define MONOLAYER_TILES kAvx512Tiles
#define MONOLAYER_TILES_NAME "avx512"
#else
#define MONOLAYER_TILES kNeonTiles
#define MONOLAYER_TILES_NAME "neon"
#endif

HWY_BEFORE_NAMESPACE();
namespace monolayer::cpu {

const Tiles MONOLAYER_TILES = {
    .name = MONOLAYER_TILES_NAME,
    .permute = HWY_NAMESPACE::Permute,
    .matmul = HWY_NAMESPACE::Matmul,
    .matmul_split = HWY_NAMESPACE::MatmulSplit,
    .weighted_sum = HWY_NAMESPACE::WeightedSum,
    .sum_squares = HWY_NAMESPACE::SumSquares,
    .scale_by_norm = HWY_NAMESPACE::ScaleByNorm,
    .swiglu = HWY_NAMESPACE::Swiglu,
    .softmax_chunk = HWY_NAMESPACE::SoftmaxChunk,
    .maximum = HWY_NAMESPACE::Maximum,
    .exponential = HWY_NAMESPACE::Exponential,
};

}  // namespace monolayer::cpu
HWY_AFTER_NAMESPACE();

#undef MONOLAYER_TILES
#undef MONOLAYER_TILES_NAME
#endif
