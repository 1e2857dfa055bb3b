//! Tests of what the operator plans and makes: one program, because each program takes long to compile and to link.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod admission;
mod inject;
mod permissions;
mod plans;
mod pod_security;
mod safety;
mod support;
