//! What each command does: reads look at the local table, and writes are requests with conditions on what was read.
//!
//! A client's commands are carried out one after the other, and writes are answered once every current backup has them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use tailwind_client::asynchronous::LocalTable;
use tailwind_client::{Apply, Error, Revision};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use crate::resp::{Reply, read_command};
use crate::table::{Request, State};

/// Replies of a pipeline are gathered up to this size, which is also that of the longest one.
const REPLIES_SIZE: usize = 64 << 10;

/// A reply, or what a client gets instead.
type Answer<T = Reply> = Result<T, Reply>;
/// A request, if there is anything to do, and the reply once that is done.
type Plan = (Option<Apply>, Reply);

/// What all clients share.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) state: watch::Receiver<State>,
}

impl Clients {
    /// Serves one client until it goes.
    pub(crate) async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (reader, mut writer) = stream.split();
        let (mut reader, mut replies, mut quits) = (BufReader::new(reader), Vec::new(), false);
        while !quits {
            match read_command(&mut reader).await {
                Ok(Some(words)) if words.is_empty() => {}
                Ok(Some(words)) => {
                    quits = words[0].eq_ignore_ascii_case(b"quit");
                    self.answer(words).await.unwrap_or_else(|refusal| refusal).encode(&mut replies);
                }
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    quits = true;
                    Reply::Error(format!("ERR {error}")).encode(&mut replies);
                }
                end => return end.map(drop),
            }
            if quits || reader.buffer().is_empty() || replies.len() >= REPLIES_SIZE {
                writer.write_all(&replies).await?;
                replies.clear();
            }
        }
        writer.shutdown().await
    }

    async fn answer(&self, mut words: Vec<Vec<u8>>) -> Answer {
        let name = words.remove(0).to_ascii_uppercase();
        match (name.as_slice(), words.len()) {
            (b"PING", 0) => Ok(Reply::Simple("PONG")),
            (b"QUIT", 0) => Ok(Reply::Simple("OK")),
            (b"INFO", _) => Ok(Reply::Bulk(format!("role:{}\r\n", self.state.borrow().role).as_bytes().into())),
            (b"DBSIZE", 0) => self.look(|table| Reply::count(table.len())).await,
            (b"EXISTS", 1..) => self.look(move |table| Reply::count(present(table, &words).len())).await,
            (b"GET", 1) => self.look(move |table| get(table, &words[0])).await,
            (b"SET", 2) => self.change(move |_| Ok(set(&words[0], &words[1]))).await,
            (b"INCR", 1) => self.change(move |table| increment(table, &words[0])).await,
            (b"DEL", 1..) => self.change(move |table| delete(table, &words)).await,
            (_, count) => Err(Reply::Error(format!(
                "ERR no such command: {} with {count} arguments. There are DBSIZE, DEL key.., EXISTS key.., GET key, INCR key, \
                 INFO, PING, QUIT, and SET key value",
                name.escape_ascii()
            ))),
        }
    }

    async fn look<T: Send + 'static>(&self, look: impl FnOnce(&LocalTable) -> T + Send + 'static) -> Answer<T> {
        let way = self.state.borrow().way(false)?;
        let (answer, answered) = oneshot::channel();
        // Where it has ended, there is no answer either.
        let _ = way.send(Request::Look(Box::new(|table| drop(answer.send(look(table)))))).await;
        answered.await.map_err(|_| Reply::Error("LOADING this server has just lost its sidecar".to_owned()))
    }

    /// Has a request made of what the table has, and again if that is something else by the time it is judged.
    async fn change(&self, plan: impl Fn(&LocalTable) -> Answer<Plan> + Clone + Send + 'static) -> Answer {
        loop {
            let way = self.state.borrow().way(true)?;
            let (apply, reply) = self.look(plan.clone()).await??;
            let Some(apply) = apply else { return Ok(reply) };
            let (answer, answered) = oneshot::channel();
            let _ = way.send(Request::Apply(apply, answer)).await;
            let refusal = match answered.await {
                Ok(Ok(())) => return Ok(reply),
                Ok(Err(Error::Mismatch { .. })) => continue,
                Ok(Err(Error::Retry { after, .. })) => {
                    sleep(after).await;
                    continue;
                }
                Ok(Err(Error::TableFull { message })) => format!("OOM {message}"),
                Ok(Err(Error::NotPrimary { message, .. })) => format!("READONLY {message}"),
                Ok(Err(error @ (Error::TooLarge { .. } | Error::Misuse(_)))) => format!("ERR {error}"),
                _ => "UNKNOWNOUTCOME the role was lost: read from the new primary what was done".to_owned(),
            };
            return Err(Reply::Error(refusal));
        }
    }
}

fn get(table: &LocalTable, key: &[u8]) -> Reply {
    table.get(key).map_or(Reply::Nil, |entry| Reply::Bulk(Arc::clone(&entry.value)))
}

fn set(key: &[u8], value: &[u8]) -> Plan {
    (Some(Apply::new().put(key, value)), Reply::Simple("OK"))
}

fn increment(table: &LocalTable, key: &[u8]) -> Answer<Plan> {
    let entry = table.get(key);
    let text = entry.map_or(Some("0"), |entry| str::from_utf8(&entry.value).ok());
    let number = text.and_then(|text| text.parse::<i64>().ok()?.checked_add(1));
    let number = number.ok_or_else(|| Reply::Error("ERR value is not an integer or out of range".to_owned()))?;
    let put = Apply::new().put_if(key, number.to_string().as_bytes(), entry.map(|entry| entry.revision));
    Ok((Some(put), Reply::Integer(number)))
}

/// All in one request, so nobody sees that only some are gone. The conditions make the count right.
fn delete(table: &LocalTable, keys: &[Vec<u8>]) -> Answer<Plan> {
    let present = present(table, keys);
    let delete = |all: Apply, (key, revision): (&&Vec<u8>, &Revision)| all.delete_if(key, Some(*revision));
    let apply = (!present.is_empty()).then(|| present.iter().fold(Apply::new(), delete));
    Ok((apply, Reply::count(present.len())))
}

fn present<'k>(table: &LocalTable, keys: &'k [Vec<u8>]) -> BTreeMap<&'k Vec<u8>, Revision> {
    keys.iter().filter_map(|key| Some((key, table.get(key)?.revision))).collect()
}
