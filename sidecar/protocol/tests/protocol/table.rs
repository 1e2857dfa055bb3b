//! Tables: the bytes, and each part against a model that has none of its code.

mod bytes;
mod cleaner;
mod fold;
mod index;
mod record;
mod request;
