//! The code generated from `proto/quota/v1/*.proto`, and nothing else.
#![allow(missing_docs, unreachable_pub, rust_2018_idioms)]
#![allow(clippy::all)]

tonic::include_proto!("quota.v1");

/// The compiled schema with its comments, as served by gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/quota.v1.bin"));
