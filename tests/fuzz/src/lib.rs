//! The decoders under test: the very files of quota-wire and of the server's store, compiled here
//! without the RPC stack and the database that surround them.

#[path = "../../../proto/wire/src/convert/mod.rs"]
pub mod convert;
#[path = "../../../quota-server/src/store/error.rs"]
pub mod error;
#[path = "../../../quota-server/src/store/format.rs"]
pub mod format;
#[path = "../../../proto/wire/src/limits.rs"]
pub mod limits;
#[path = "../../../proto/wire/src/malformed.rs"]
pub mod malformed;

/// The messages of the schema.
#[allow(clippy::all)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/quota.v1.rs"));
}

pub use error::StoreError;
/// Named by a message of the store's errors, which nothing reads here.
pub use limits::SHARDS_MAX;
pub use malformed::Malformed;
