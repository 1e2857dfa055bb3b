//! Moves a sidecar between its roles: standby → candidate → primary → standby.
//!
//! Started by [`run`](crate::run) on the tokio runtime; not on the append path. [`standby`] watches the primary,
//! [`promote`] executes what the promotion machine wants, [`lead`] and [`seat`] what the primary machine wants, [`member`] speaks
//! to one backup, [`fit`] asks whether backups can take what this sidecar writes; [`status`], [`waits`], [`follows`], [`refusals`], [`contacts`], [`peers`] and [`rates`] tell how it goes. After any failure it goes back to a named
//! role and takes the ordinary way again. Clients are served beside the roles: [`client_read`] sends them records, from this primary's
//! [`own`] [`log`] or, by a [`follow`], from what members hold; [`position`] asks the primary how far the log is.

pub mod ahead;
pub mod alarm;
pub mod client_read;
pub mod client_stream;
pub mod configuration;
pub mod contacts;
pub mod desired;
pub mod fit;
mod follow;
pub mod follows;
mod handle;
pub mod lead;
pub mod log;
pub mod measured;
pub mod member;
mod own;
pub mod peers;
pub mod position;
pub mod promote;
pub mod rates;
mod readiness;
pub mod refusals;
pub mod seat;
pub mod sources;
pub mod standby;
pub mod status;
pub mod tenure;
pub mod times;
pub mod visit;
pub mod waits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_fabric::{Reader, Sender};
use tailwind_protocol::config::{Configuration, Durability, MemberRef, PrimaryRef};
use tailwind_protocol::ids::{GroupName, MemberId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::rpc::{PullSource, SOURCE_ADDRESSES_MAX};
use tailwind_protocol::socket::Role;
use tailwind_report::readiness::WaitsFor;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::access::Access;
use crate::kubernetes::PrimaryAddress;
use crate::path::{ClientRequest, Command, ControlReceivers, Counters, FromTerm};
use crate::rpc::BackupClient;
use crate::store::Store;

use contacts::Contacts;
use desired::{DesiredState, READS_DISABLED};
use fit::FitCheck;
use follows::Follows;
pub use handle::AppendLoopHandle;
use log::LogView;
use peers::Peers;
use position::PrimaryClient;
use rates::Rates;
use refusals::Refusals;
use tenure::Tenure;
use times::PromotionTimes;
use waits::Waits;

/// A term that ends sooner is followed by a pause, longer after each such term.
const TERM_SHORT: Duration = Duration::from_secs(1);
/// The first such pause: members that were restarted a moment ago are back by then.
const TERM_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest: a person who has mended the cause should not wait for long.
const TERM_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a reader looks why there is no configuration.
const ABSENT_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Whom positions are asked of.
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

/// What the group has been made with, and how patient to be.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What an ack promises.
    pub durability: Durability,
    /// Size of segments.
    pub segment_size: SegmentSize,
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

/// Runs the roles and serves clients for ever. Returns only with an error that a person must see to.
pub async fn run(context: Arc<Context>, from_path: ControlReceivers) -> anyhow::Result<()> {
    let ControlReceivers { outputs, requests } = from_path;
    let roles = async {
        match context.rules.reader {
            true => stay_reader(&context).await,
            false => change_roles(&context, outputs).await,
        }
    };
    tokio::select! {
        end = roles => end,
        () = serve_clients(&context, requests) => Err(anyhow::anyhow!("the append path has ended")),
        // What is told of the group beside what the roles know.
        never = contacts::watch(&context) => match never {},
        never = peers::tell(&context) => match never {},
        never = context.rates.watch(&context.shared) => match never {},
    }
}

async fn change_roles(context: &Arc<Context>, mut outputs: mpsc::Receiver<FromTerm>) -> anyhow::Result<()> {
    let mut pause = Duration::ZERO;
    // A promotion that is disturbed is still part of the same failover.
    let mut missed: Option<Instant> = None;
    let mut fit = FitCheck::default();
    loop {
        stay_fenced(context).await;
        let Some(turn) = standby::wait_for_turn(context).await else { continue };
        missed = turn.missed.or(missed);
        if context.desired().fenced || !turn.has_asked && !fit.passes(context).await {
            continue;
        }
        context.path.send(Command::Wait { role: Role::Recovering, epoch: 0, primary: String::new() });
        let outcome = promote::promote(context, turn.founding).await;
        if !matches!(outcome, promote::Outcome::Won(..)) {
            context.tenure.end();
        }
        context.waits.over();
        match outcome {
            promote::Outcome::Won(config, reference) => {
                if let Some(missed) = missed.take() {
                    context.times.failed_over(missed.elapsed());
                }
                let began = Instant::now();
                let why = lead::lead(context, config, &reference, &mut outputs).await?;
                context.tenure.end();
                tracing::warn!(%why, "stepped down");
                // Whatever ends one term after the other is not mended by the next: backups of another size, full disks.
                pause = match began.elapsed() {
                    short if short < TERM_SHORT => (pause * 2).clamp(TERM_PAUSE_MIN, TERM_PAUSE_MAX),
                    _ => Duration::ZERO,
                };
                tokio::time::sleep(pause).await;
            }
            promote::Outcome::Disturbed => {
                tracing::info!("the group's desired state has changed")
            }
            promote::Outcome::Lost(epoch) => {
                tracing::info!(%epoch, "another sidecar claimed a newer epoch");
                missed = None;
                // Candidates that race back off at random.
                tokio::time::sleep(Duration::from_millis(random_below(40))).await;
            }
        }
    }
}

/// The role of a sidecar that only reads: clients are told who is primary, as it changes.
async fn stay_reader(context: &Context) -> anyhow::Result<()> {
    let mut configurations = context.configuration.clone();
    let mut desired = context.desired.clone();
    configurations.mark_changed();
    desired.mark_changed();
    let (mut said, mut may_read) = (None, true);
    let mut absent = AbsentStore::default();
    loop {
        tokio::select! {
            () = absent.looks_again(), if said.is_none() => {
                absent.tell(context).await;
                continue;
            }
            Ok(()) = desired.changed() => {
                let before = std::mem::replace(&mut may_read, desired.borrow_and_update().may_read);
                match (before, may_read) {
                    (true, false) => tracing::warn!("{READS_DISABLED}"),
                    (false, true) => tracing::info!("reads are enabled again"),
                    _ => {}
                }
                continue;
            }
            changed = configurations.changed() => if changed.is_err() { break },
        }
        let known = configurations.borrow_and_update().as_ref().map(|config| (config.epoch, config.primary.id.clone()));
        let Some((epoch, primary)) = known.clone().filter(|_| known != said) else { continue };
        context.waits.over();
        tracing::info!(%epoch, %primary, "reader");
        context.path.send(Command::Wait { role: Role::Reader, epoch: epoch.0, primary: primary.to_string() });
        said = known;
    }
    anyhow::bail!("the watch of the config store has ended")
}

/// A config store that a reader finds nothing in: the group has not started, or the reader looks in the wrong place.
#[derive(Default)]
struct AbsentStore {
    said: Option<String>,
}

impl AbsentStore {
    /// Between two looks. The first one comes after as long: a group may start its sidecars in any order.
    async fn looks_again(&self) {
        tokio::time::sleep(ABSENT_INTERVAL).await;
    }

    /// Says what is missing, when that changes.
    async fn tell(&mut self, context: &Context) {
        let why = match context.store.read().await {
            Ok(Some(_)) => return,
            Ok(None) => context.store.nothing_yet(),
            Err(why) => why,
        };
        context.waits.wait(WaitsFor::ConfigStore, why.clone());
        if self.said.as_ref() != Some(&why) {
            tracing::warn!(%why, "waiting");
            self.said = Some(why);
        }
    }
}

/// Returns at once, unless the group is to have no primary.
async fn stay_fenced(context: &Context) {
    if context.desired().fenced {
        tracing::warn!("fenced: no appends until spec.fenced is cleared");
        context.waits.over();
        context.path.send(Command::Wait { role: Role::Standby, epoch: 0, primary: String::new() });
        context.desires(|desired| !desired.fenced).await;
        tracing::info!("no longer fenced");
    }
}

/// Reads and questions for the status are served in every role, each in a task of its own: at most as many as there are clients,
/// and a few questions of each.
async fn serve_clients(context: &Arc<Context>, mut requests: mpsc::Receiver<ClientRequest>) {
    let mut tasks = JoinSet::new();
    while let Some(request) = requests.recv().await {
        while tasks.try_join_next().is_some() {}
        let context = Arc::clone(context);
        match request {
            ClientRequest::Read { detached, request, start, kind } => {
                let wanted = client_read::Wanted { request, start, kind };
                tasks.spawn(client_read::serve(context, detached, wanted));
            }
            ClientRequest::Position(client, request) => {
                tasks.spawn(async move {
                    let position = position::ask(Arc::clone(&context)).await;
                    context.path.send(Command::AnswerPosition(client, request, position));
                });
            }
            ClientRequest::Status(client, request) => {
                tasks.spawn(async move {
                    let json = status::json(&context).await;
                    context.path.send(Command::Answer(client, request, json));
                });
            }
        }
    }
}

/// A random number below `bound`; 0 where the system has no randomness to give.
fn random_below(bound: u64) -> u64 {
    getrandom::u64().unwrap_or(0) % bound
}
