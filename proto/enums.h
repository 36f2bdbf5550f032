/* Values of the schema's enums (carried as uint32, see mla.proto). Never renumbered. */
#ifndef MLA_PROTO_ENUMS_H
#define MLA_PROTO_ENUMS_H

enum mla_region_kind { MLA_REGION_MEMFD = 1, MLA_REGION_CUDA_IPC = 2, MLA_REGION_CUDA_VMM = 3 };

enum mla_access { MLA_ACCESS_READ = 1, MLA_ACCESS_READ_WRITE = 2 };

/* Rows of a page. E4M3_576: 512 latent bytes, then 64 rope bytes, e4m3 FN; V is the first 512. The others are reserved
 * and answered UNSUPPORTED. */
enum mla_cache_layout { MLA_CACHE_E4M3_576 = 1, MLA_CACHE_BF16_576 = 2, MLA_CACHE_E4M3_512_BF16_64_SCALED = 3 };

enum mla_dtype { MLA_DTYPE_E4M3 = 1, MLA_DTYPE_BF16 = 2, MLA_DTYPE_F32 = 3 };

/* NONE: every key. CAUSAL: bottom-right, token t of q_len sees keys 0 .. kv_len - q_len + t. VISIBLE: token t sees the
 * first visible[t] keys. */
enum mla_mask { MLA_MASK_NONE = 1, MLA_MASK_CAUSAL = 2, MLA_MASK_VISIBLE = 3 };

enum mla_goaway { MLA_GOAWAY_DRAINING = 1, MLA_GOAWAY_FATAL = 2 };

enum mla_health {
    MLA_HEALTH_STARTING = 1,
    MLA_HEALTH_READY = 2,
    MLA_HEALTH_DEGRADED = 3,
    MLA_HEALTH_DRAINING = 4,
    MLA_HEALTH_FAILED = 5
};

enum mla_metric_type { MLA_METRIC_COUNTER = 1, MLA_METRIC_GAUGE = 2, MLA_METRIC_HISTOGRAM = 3 };

enum mla_status_what { MLA_STATUS_DAEMON = 1, MLA_STATUS_CLIENTS = 2, MLA_STATUS_CACHES = 3 };

/* Bits of HELLO's features. */
enum mla_feature {
    MLA_FEATURE_DECODE = 1 << 0,   /* DECODE, table sets, CANCEL */
    MLA_FEATURE_MEMFD = 1 << 1,    /* regions of kind MEMFD */
    MLA_FEATURE_CUDA_IPC = 1 << 2, /* regions of kind CUDA_IPC */
    MLA_FEATURE_CUDA_VMM = 1 << 3, /* regions of kind CUDA_VMM */
    MLA_FEATURE_SYNC = 1 << 4,     /* sync pages, ready and done words */
    MLA_FEATURE_SUSPEND = 1 << 5,  /* SUSPEND and RESUME */
    MLA_FEATURE_STEP = 1 << 6,     /* TEMPLATE_OPEN, STEP, TEMPLATE_CLOSE */
    MLA_FEATURE_PUBLISH = 1 << 7,  /* PUBLISH_CACHE, ATTACH_CACHE */
    MLA_FEATURE_EVICT = 1 << 8,    /* EVICT */
    MLA_FEATURE_RELOAD = 1 << 9    /* RELOAD */
};

#endif
