//! A backup in a pod of a [`Shop`](super::shop::Shop): it listens where operators ask, and reports what the test says. Each one
//! has an address of its own, as pods do: all of 127.0.0.0/8 leads to this host.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use axum::http::header::CONNECTION;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tailwind_crds::names::PORT_BACKUP_PROBES;
use tailwind_report::report::{self, BackupReport, Report};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The identity of each backup until it loses its memory.
pub(super) const BOOT: &str = "00";
/// Addresses are drawn at random, since other tests run at the same time; one that is taken is drawn again.
const DRAWS_MAX: usize = 8;

pub(super) struct Backup {
    pub(super) address: IpAddr,
    page: Page,
    server: JoinHandle<()>,
}

/// Its report; `None` if it has none to show.
type Page = Arc<Mutex<Option<Report<BackupReport>>>>;

impl Backup {
    /// One that holds nothing, and has nothing in quarantine.
    pub(super) async fn start(group: &str, name: &str) -> Backup {
        let empty = BackupReport { boot: BOOT.to_owned(), quarantined: Some(0), ..BackupReport::default() };
        let page = Page::new(Mutex::new(Some(Report::new(group, name, empty))));
        let listener = listen().await;
        let address = listener.local_addr().unwrap().ip();
        let shown = Arc::clone(&page);
        let handle = move |uri: Uri| std::future::ready(answer(&uri, shown.lock().unwrap().as_ref()));
        let server = tokio::spawn(async move {
            axum::serve(listener, axum::Router::new().fallback(handle)).await.unwrap();
        });
        Backup { address, page, server }
    }

    /// Changes what it reports.
    pub(super) fn report(&self, change: impl FnOnce(&mut Report<BackupReport>)) {
        change(self.page.lock().unwrap().as_mut().unwrap());
    }

    /// From now on its report cannot be read.
    pub(super) fn withhold_report(&self) {
        *self.page.lock().unwrap() = None;
    }

    /// From now on nobody listens.
    pub(super) async fn stop(self) {
        self.server.abort();
        assert!(self.server.await.unwrap_err().is_cancelled());
    }
}

/// No connection is used twice: one that is open would outlive the listener.
fn answer(uri: &Uri, report: Option<&Report<BackupReport>>) -> Response {
    let close = [(CONNECTION, "close")];
    match report {
        _ if uri.path() != report::PATH => (StatusCode::NOT_FOUND, close).into_response(),
        Some(report) => (close, axum::Json(report)).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, close, "unresponsive").into_response(),
    }
}

async fn listen() -> TcpListener {
    for _ in 0..DRAWS_MAX {
        let mut random = [0; 3];
        getrandom::fill(&mut random).unwrap();
        let [a, b, c] = random;
        // Not 127.0.0.1, nor what a shop gives to pods of its app.
        let address = Ipv4Addr::new(127, 128 + a % 127, b, c);
        if let Ok(listener) = TcpListener::bind((address, PORT_BACKUP_PROBES)).await {
            return listener;
        }
    }
    panic!("port {PORT_BACKUP_PROBES} is free at none of {DRAWS_MAX} addresses: does something listen at all of them?");
}
