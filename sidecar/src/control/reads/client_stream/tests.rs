//! What a client says during its read, however much of it.

use tailwind_protocol::socket::{FRAME_HEADER_SIZE, VERSION, decode_response};
use tokio::io::AsyncReadExt;

use super::*;

const REQUEST: u64 = 7;
const REQUEST_MAX: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn frames(said: &[(u64, Request<'_>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    said.iter().for_each(|(request, frame)| frame.encode(*request, &mut bytes));
    bytes
}

/// A client that has said this so far, and the client's end of the socket.
fn stream(said: Vec<u8>) -> (ClientStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ClientStream::new(ours, said, VERSION, REQUEST, Lsn(1), REQUEST_MAX, PATIENCE), theirs)
}

/// Listens, and counts how often others get their turn meanwhile.
async fn listen(client: &mut ClientStream) -> (Result<(), End>, usize) {
    let (mut listening, mut turns) = (std::pin::pin!(client.listen()), 0);
    let heard = std::future::poll_fn(|context| {
        let polled = listening.as_mut().poll(context);
        turns += usize::from(polled.is_pending());
        polled
    });
    let heard = heard.await;
    (heard, turns)
}

/// None of this needs an answer, so that nothing else makes it wait.
#[tokio::test]
async fn a_client_that_says_much_leaves_others_their_turn() {
    let count = REQUEST_MAX / FRAME_HEADER_SIZE / 2;
    let mut said = frames(&[(0, Request::Wake), (REQUEST - 1, Request::Stop)]).repeat(count);
    said.extend(frames(&[(REQUEST, Request::Stop), (8, Request::Status)]));
    let (mut client, _theirs) = stream(said);
    let (heard, turns) = listen(&mut client).await;
    assert!(matches!(heard, Err(End::Stopped)), "{heard:?}");
    assert_eq!(turns, 2 * count / FRAMES_PER_TURN);
    assert_eq!(client.into_parts().1, frames(&[(8, Request::Status)]), "what is not for the read");
}

#[tokio::test]
async fn what_is_incomplete_is_kept() {
    let said = frames(&[(0, Request::Wake), (8, Request::Status), (REQUEST, Request::Stop)]);
    let (mut client, mut theirs) = stream(said[..said.len() - 1].to_vec());
    let (heard, turns) = listen(&mut client).await;
    assert!(heard.is_ok() && turns == 0, "{heard:?}, {turns} turns");
    let mut answer = [0; FRAME_HEADER_SIZE];
    theirs.read_exact(&mut answer).await.unwrap();
    assert_eq!((answer[4], answer[8]), (131, 8), "an error for the status request");
    theirs.try_write(&said[said.len() - 1..]).unwrap();
    client.speaks().await.unwrap();
    assert!(matches!(listen(&mut client).await.0, Err(End::Stopped)));
    assert!(client.into_parts().1.is_empty());
}

/// Of a read that goes on, whoever sends the records: so also where a follow becomes a tail of the own log, or the reverse.
#[tokio::test]
async fn catching_up_is_told_again_after_further_records() {
    let (mut client, mut theirs) = stream(Vec::new());
    client.send_caught_up().await.unwrap();
    client.send_caught_up().await.unwrap();
    for lsn in 1..=2 {
        let mut frames = RecordsFrames::new(REQUEST);
        frames.put(lsn, b"record");
        client.send_records(&mut frames).await.unwrap();
        client.send_caught_up().await.unwrap();
        client.send_caught_up().await.unwrap();
    }
    drop(client);
    let mut bytes = Vec::new();
    theirs.read_to_end(&mut bytes).await.unwrap();
    let (mut told, mut rest) = (Vec::new(), &bytes[..]);
    while let Some(decoded) = decode_response(rest).unwrap() {
        told.push(match decoded.frame {
            Response::Records { first, .. } => format!("record {first}"),
            Response::End { next, tailing: true } => format!("caught up before {next}"),
            other => panic!("{other:?}"),
        });
        rest = &rest[decoded.size..];
    }
    assert_eq!(told, ["caught up before 1", "record 1", "caught up before 2", "record 2", "caught up before 3"]);
}
