//! Tests of the definitions and of what people install: one program, because each program takes long to compile and to link.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod manifests;
mod releases;
mod rules;
mod schema;
mod support;
