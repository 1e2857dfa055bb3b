//! What stands in the place of `baselines` in a build without that feature, so in all that ships: a type of which there is no
//! value, so that nothing else needs to know how it was built.

use std::net::TcpListener;
use std::sync::Arc;

use crate::contract::{Receiver, Sender};
use crate::error::FabricError;
use crate::pool::Pool;
use crate::reading::Reader;

/// A baseline, of which this build has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineChoice {}

impl BaselineChoice {
    /// None.
    pub const ALL: &[BaselineChoice] = &[];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {}
    }

    /// Whether its receiver needs a listener.
    pub fn is_over_tcp(self) -> bool {
        match self {}
    }

    /// The sending half.
    pub fn sender(self) -> Arc<dyn Sender> {
        match self {}
    }

    /// The reading half.
    pub fn reader(self) -> Arc<dyn Reader> {
        match self {}
    }

    /// The receiving half.
    pub fn receiver(self, _: Arc<Pool>, _: Option<TcpListener>) -> Result<Box<dyn Receiver>, FabricError> {
        match self {}
    }
}
