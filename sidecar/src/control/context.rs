//! What everything in control shares: who this sidecar is, what it reaches, what the group wants, and how it goes.
//!
//! Made by [`run`](crate::run).

use std::sync::Arc;
use std::time::Duration;

use tailwind_fabric::{Reader, Sender};
use tailwind_protocol::config::{Configuration, Durability, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::ids::{GroupName, MemberId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::rpc::{PullSource, SOURCE_ADDRESSES_MAX};
use tokio::sync::watch;

use super::desired::DesiredState;
use super::handle::AppendLoopHandle;
use super::log::LogView;
use super::reads::follows::Follows;
use super::reads::position::PrimaryClient;
use super::roles::tenure::Tenure;
use super::status::contacts::Contacts;
use super::status::peers::Peers;
use super::status::rates::Rates;
use super::status::refusals::Refusals;
use super::status::table::TableWork;
use super::status::times::PromotionTimes;
use super::status::waits::Waits;
use crate::access::Access;
use crate::kubernetes::PrimaryAddress;
use crate::options::TableSize;
use crate::path::Counters;
use crate::rpc::BackupClient;
use crate::store::Store;

/// What the roles need to know.
pub struct Context {
    /// The group.
    pub group: GroupName,
    /// This sidecar as the config store shall name it.
    pub me: PrimaryRef,
    /// Where elections are decided.
    pub store: Store,
    /// Moves bytes to backups.
    pub sender: Arc<dyn Sender>,
    /// Reads backups' memory.
    pub reader: Arc<dyn Reader>,
    /// Leads clients here while this sidecar is primary; in Kubernetes only.
    pub primary_address: Option<PrimaryAddress>,
    /// Guards the control RPC.
    pub access: Access,
    /// What the group wants now.
    pub desired: watch::Receiver<DesiredState>,
    /// What the config store shows.
    pub configuration: watch::Receiver<Option<Configuration>>,
    /// The sidecar to ask for a position.
    pub primary: PrimaryClient,
    /// What the group has been made with, and how patient to be.
    pub rules: Rules,
    /// The append path.
    pub path: AppendLoopHandle,
    /// Numbers of the append path.
    pub shared: Arc<Counters>,
    /// The log as readers see it.
    pub log: LogView,
    /// Clients that read what members hold.
    pub follows: Arc<Follows>,
    /// What keeps this sidecar from becoming primary.
    pub waits: Waits,
    /// Which members lend no buffer.
    pub refusals: Refusals,
    /// Which backups are lost, or do not answer.
    pub contacts: Contacts,
    /// The group's other sidecars.
    pub peers: Peers,
    /// How fast records are appended.
    pub rates: Rates,
    /// What is done for its table.
    pub table: TableWork,
    /// The term that it leads, or is about to.
    pub tenure: Tenure,
    /// How long failovers have taken.
    pub times: PromotionTimes,
}

impl Context {
    /// What the group wants now.
    pub fn desired(&self) -> DesiredState {
        self.desired.borrow().clone()
    }

    /// Whether clients may read what members hold: a standby's always may.
    pub fn may_read(&self) -> bool {
        !self.rules.reader || self.desired.borrow().may_read
    }

    /// A client of a backup. Each call goes to the address in the group's desired state, which is current, or else to the one
    /// in the configuration, where the backup was when it joined the set.
    pub fn backup(&self, id: &MemberId, stored: Option<&str>) -> BackupClient {
        let (desired, name, stored) = (self.desired.clone(), id.clone(), stored.map(str::to_owned));
        let addresses = move || addresses(&desired.borrow(), &name, stored.as_deref());
        BackupClient::of_member(id.clone(), &self.access, addresses)
    }

    /// Where another backup may find this member.
    pub fn source(&self, member: &MemberRef) -> PullSource {
        let control = addresses(&self.desired.borrow(), &member.id, Some(&member.control));
        PullSource { member: member.id.clone(), control }
    }

    /// Returns once the desired state is such.
    pub async fn desires(&self, such: impl FnMut(&DesiredState) -> bool) {
        if self.desired.clone().wait_for(such).await.is_err() {
            // A desired state that never changes, or a process that ends.
            std::future::pending::<()>().await;
        }
    }
}

/// The addresses of a backup, the likeliest first. Two at most, unless it is listed more than once.
fn addresses(desired: &DesiredState, id: &MemberId, stored: Option<&str>) -> Vec<String> {
    let current = desired.backups.iter().filter(|(known, _)| known == id).map(|(_, control)| control.clone());
    let mut addresses: Vec<String> = current.chain(stored.map(str::to_owned)).collect();
    addresses.dedup();
    addresses.truncate(SOURCE_ADDRESSES_MAX);
    addresses
}

impl Rules {
    /// What this sidecar's options say that the group keeps.
    pub fn kind(&self) -> Kind {
        TableSize::kind(self.table.as_ref())
    }
}

/// What the group has been made with, and how patient to be.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What an ack promises.
    pub durability: Durability,
    /// Size of segments.
    pub segment_size: SegmentSize,
    /// The size of the group's table, if it keeps one.
    pub table: Option<TableSize>,
    /// A peer that is silent for so long is dead.
    pub heartbeat_silence: Duration,
    /// How long a standby without an app lets others go first.
    pub app_wait: Duration,
    /// How long a promotion waits for slower members once enough are fenced.
    pub fence_wait: Duration,
    /// How long a member may hold up the next segment.
    pub open_timeout: Duration,
    /// How long a control RPC may take.
    pub rpc_timeout: Duration,
    /// How long a client that reads may take nothing.
    pub client_timeout: Duration,
    /// It never becomes primary.
    pub reader: bool,
}
