//! A mock of the attribute macro of `linkme`. The mock removes the attribute from the item, as the real macro
//! does, and changes nothing else.

use proc_macro::{TokenStream, TokenTree};

/// Removes `#[linkme(..)]`.
#[proc_macro_attribute]
pub fn distributed_slice(_slice: TokenStream, item: TokenStream) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in item {
        let is_linkme = matches!(&token, TokenTree::Group(g) if g.to_string().starts_with("[linkme"));
        if is_linkme {
            kept.pop();
        } else {
            kept.push(token);
        }
    }
    kept.into_iter().collect()
}
