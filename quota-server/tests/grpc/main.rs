//! The server over real gRPC, on a real store: what holders, callers and administrators see.

mod abuse;
mod admin;
mod counts;
mod operate;
mod quotactl;
mod restart;
mod single;
mod stream;
mod support;
mod switch;
